-- The newest attempts of a consumer, newest first.
-- @shard: null for all shards. @limit: rows at most, 1 or more.
-- result: number, consumer, shard, first_ulid, last_ulid, events, attempt, started_at, ended_at, outcome, error, holder, fencing_token.
-- errors: as find_feed. 77108 @limit
-- permission: readers of the feed
create or alter procedure <<schema>>.[list_invocations] (
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
        i.number, i.consumer, i.shard, i.first_ulid, i.last_ulid, i.events, i.attempt, i.started_at, i.ended_at, i.outcome, i.error, i.holder, i.fencing_token
    from <<schema>>.[invocations] as i
    where i.feed_id = @feed_id and i.consumer = @consumer and (@shard is null or i.shard = lower(@shard))
    order by i.number desc;
end
