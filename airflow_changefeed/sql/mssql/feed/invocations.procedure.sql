-- The newest attempts of a consumer, newest first.
-- @shard_id: null for all shards. @limit: rows at most, 1 or more.
-- result: number, consumer, shard, first_ulid, last_ulid, events, attempt, started_at, ended_at, outcome, error, holder, fencing_token.
-- errors: 77108 @limit
-- permission: readers
create procedure <<schema>>.[invocations:<<name>>] (
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
            i.number, i.consumer, i.shard, i.first_ulid, i.last_ulid, i.events, i.attempt, i.started_at, i.ended_at, i.outcome, i.error, i.holder, i.fencing_token
        from <<schema>>.[invocations] as i
        where i.feed_id = <<feed_id>> and i.consumer = @consumer and (@shard is null or i.shard = @shard)
        order by i.number desc;
    end try
    begin catch
        throw;
    end catch;
end
