-- The events that the feed's consumers parked, by number.
-- @consumer: null for all. @is_open: 1 for those still to be consumed, 0 for all. @number: null for all.
-- result: number, feed, consumer, shard, ulid, state, attempts, reason, parked_at, parked_by, resolved_at, resolved_by, note.
-- errors: as find_feed
-- permission: readers of the feed
create procedure <<schema>>.[list_dead_letters] (
    @feed nvarchar(128),
    @consumer nvarchar(128) = null,
    @is_open bit = 1,
    @number bigint = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @feed_id int;
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        select
            d.number, @feed as feed, d.consumer, d.shard, d.ulid, d.state, d.attempts, d.reason, d.parked_at, d.parked_by, d.resolved_at,
            d.resolved_by, d.note
        from <<schema>>.[dead_letters] as d
        where d.feed_id = @feed_id and (@consumer is null or d.consumer = @consumer) and (@number is null or d.number = @number)
            and (@is_open = 0 or d.state in ('parked', 'retry'))
        order by d.number;
    end try
    begin catch
        throw;
    end catch;
end
