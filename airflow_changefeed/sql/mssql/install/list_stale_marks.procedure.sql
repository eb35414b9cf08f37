-- The marks of inserted history.
-- result: number, shard, after_ulid (exclusive), upto_ulid (inclusive), at, reason; by number.
-- errors: as find_feed
-- permission: readers of the feed
create or alter procedure <<schema>>.[list_stale_marks] (@feed nvarchar(128))
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @feed_id int;
    exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
    select m.number, m.shard, m.after_ulid, m.upto_ulid, m.at, m.reason
    from <<schema>>.[stale_marks] as m
    where m.feed_id = @feed_id
    order by m.number;
end
