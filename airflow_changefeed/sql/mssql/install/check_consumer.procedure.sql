-- Throws if a consumer has no row for a shard, or does not belong to the caller. Keeps the row locked.
-- errors: 77131, 77135
-- permission: internal
create or alter procedure <<schema>>.[check_consumer] (
    @feed_id int,
    @feed nvarchar(128),
    @consumer nvarchar(128),
    @shard nvarchar(36)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @message nvarchar(2048), @version bigint, @owner nvarchar(128);
    -- Locked by an update that changes nothing, then read: this reads what the last holder of the lock committed. The hints keep the row until
    -- the transaction ends where the write alone would not (ADR 0005); Babelfish ignores them.
    update <<schema>>.[consumers] with (updlock, rowlock) set resource_version = resource_version
    where feed_id = @feed_id and consumer = @consumer and shard = @shard;
    select @version = c.resource_version, @owner = c.owner from <<schema>>.[consumers] as c
    where c.feed_id = @feed_id and c.consumer = @consumer and c.shard = @shard;
    if @version is null
    begin
        set @message = concat(
            N'changefeed 77131: consumer "', @consumer, N'" has no cursor for shard ', @shard, N' of feed "', @feed, N'"; create it first (begin_consumer)');
        throw 77131, @message, 1;
    end;
    -- Another row is read only to refuse: its mover may be waiting for this one.
    if <<schema>>.[owns_consumer](@owner, @feed) = 0 exec <<schema>>.[check_owner] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer;
end
