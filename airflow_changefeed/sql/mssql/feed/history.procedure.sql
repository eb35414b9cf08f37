-- The newest changes of a consumer's cursors, newest first; the newest 200 of each shard are kept. A consumer's own steps are in its log
-- instead (invocations).
-- @shard_id: null for all shards. @limit: rows at most, 1 or more.
-- result: number, consumer, shard, before_ulid (null when the row was made), after_ulid, resource_version (of the row, after the
--     change), moved_at, moved_by, why.
-- errors: 77108 @limit
-- permission: readers
create procedure <<schema>>.[history:<<name>>] (
    @consumer nvarchar(128),
    @shard_id <<shard_type>> = null,
    @limit int = 100
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @shard nvarchar(36) = <<schema>>.[shard_text](@shard_id);
        if @limit is null or @limit < 1
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @limit must be 1 or more', 1;
        select top (@limit)
            h.number, h.consumer, h.shard, h.before_ulid, h.after_ulid, h.resource_version, h.moved_at, h.moved_by, h.why
        from <<schema>>.[cursor_history] as h
        where h.feed_id = <<feed_id>> and h.consumer = @consumer and (@shard is null or h.shard = @shard)
        order by h.number desc;
    end try
    begin catch
        throw;
    end catch;
end
