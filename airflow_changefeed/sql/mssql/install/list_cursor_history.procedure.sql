-- The newest changes of a consumer's cursors, newest first; the newest 200 of each shard are kept. A consumer's own steps are in its log
-- instead (list_invocations).
-- @shard: null for all shards. @limit: rows at most, 1 or more.
-- result: number, consumer, shard, before_ulid (null when the row was made), after_ulid, resource_version (of the row, after the
--     change), moved_at, moved_by, why.
-- errors: as find_feed. 77108 @limit
-- permission: readers of the feed
create or alter procedure <<schema>>.[list_cursor_history] (
    @feed nvarchar(128),
    @consumer nvarchar(128),
    @shard nvarchar(36) = null,
    @limit int = 100
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @feed_id int, @message nvarchar(2048);
    exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
    if @limit is null or @limit < 1
    begin
        set @message = concat(N'changefeed 77108: feed "', @feed, N'": @limit must be 1 or more');
        throw 77108, @message, 1;
    end;
    select top (@limit)
        h.number, h.consumer, h.shard, h.before_ulid, h.after_ulid, h.resource_version, h.moved_at, h.moved_by, h.why
    from <<schema>>.[cursor_history] as h
    where h.feed_id = @feed_id and h.consumer = @consumer and (@shard is null or h.shard = lower(@shard))
    order by h.number desc;
end
