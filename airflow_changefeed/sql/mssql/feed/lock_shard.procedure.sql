-- feed_write_lock:T, or an error. For a shard never used before it also takes the floor lock, shared, which update_state:T then requests
-- (R7): here with the caller's lock timeout.
-- @lock_timeout: milliseconds, -1 waits forever.
-- errors: 77109 the caller is not a member of any role of the feed. 77101 another session holds the shard, a seal is raising the floor
--     of a new one, or this was chosen as the deadlock victim; transient
-- permission: internal
create or alter procedure <<schema>>.[lock_shard:<<name>>] (
    @shard_id <<shard_type>>,
    @lock_timeout int
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @result int, @message nvarchar(2048);
    exec <<schema>>.[feed_write_lock:<<name>>] @shard_id = @shard_id, @lock_timeout = @lock_timeout, @lock_result = @result output;
    if @result = -999
        throw 77109, N'changefeed 77109: feed "<<name_text>>": you may not acquire its locks; ask a DBA to make you a member of one of its roles, or of <<schema_text>>.users', 1;
    if @result < 0
    begin
        -- sp_getapplock does not roll back, not even as deadlock victim (-3); the caller's catch does.
        set @message = concat(
            N'changefeed 77101: feed "<<name_text>>" shard ', <<schema>>.[shard_text](@shard_id),
            case when @result = -3
                then N': chosen as the deadlock victim. Nothing was changed; retry, and lock several shards always in the same order'
                else concat(N': no lock within ', @lock_timeout, N' ms (', @result,
                    N'); a writer, drain or seal holds it. Nothing was changed; retry, or wait longer with @lock_timeout')
            end);
        throw 77101, @message, 1;
    end;
    if exists (select 1 from <<schema>>.[state:<<name>>] as s where s.shard_id = @shard_id) return;
    exec @result = sp_getapplock
        @Resource = N'changefeed/<<object_id>>/floor', @LockMode = N'Shared', @LockOwner = N'Transaction', @LockTimeout = @lock_timeout,
        @DbPrincipal = N'<<schema_text>>.users';
    if @result < 0
    begin
        set @message = concat(N'changefeed 77101: feed "<<name_text>>" shard ', <<schema>>.[shard_text](@shard_id), N': a seal has been raising the feed''s floor for longer than ', @lock_timeout, N' ms (', @result, N'). Nothing was changed; retry, or wait longer with @lock_timeout');
        throw 77101, @message, 1;
    end;
end
