-- Takes the lock for creating consumers of the feed and their shards; owned by the transaction.
-- @lock_timeout: milliseconds, -1 waits forever.
-- errors: 77101 another session holds it, or this one was chosen as the deadlock victim; transient
-- permission: internal
create or alter procedure <<schema>>.[lock_consumers] (
    @feed_id int,
    @feed nvarchar(128),
    @lock_timeout int
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @result int, @message nvarchar(2048), @resource nvarchar(255) = concat(N'changefeed/consumers/', @feed_id);
    exec @result = sp_getapplock
        @Resource = @resource, @LockMode = N'Exclusive', @LockOwner = N'Transaction', @LockTimeout = @lock_timeout,
        @DbPrincipal = N'<<schema_text>>.users';
    if @result < 0
    begin
        -- sp_getapplock does not roll back, not even as deadlock victim (-3); the caller's catch does.
        set @message = concat(N'changefeed 77101: consumers of feed "', @feed, N'": ',
            case when @result = -3 then N'chosen as the deadlock victim' else concat(N'no lock within ', @lock_timeout, N' ms (', @result, N')') end,
            N'; another session is creating a consumer or adding a shard to one. Nothing was changed; retry');
        throw 77101, @message, 1;
    end;
end
