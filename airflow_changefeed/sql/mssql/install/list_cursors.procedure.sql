-- The cursor rows of the feed's consumers.
-- @consumer: null for all.
-- result: consumer, shard, start_ulid, ulid, ahead, before, began, ack, resource_version, moved_at, moved_by, fencing_token,
--     lease_holder, lease_expires; by consumer and shard.
-- errors: as find_feed
-- permission: readers of the feed
create or alter procedure <<schema>>.[list_cursors] (@feed nvarchar(128), @consumer nvarchar(128) = null)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @feed_id int;
    exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
    select
        c.consumer, c.shard, c.start_ulid, c.ulid, c.ahead, c.before, c.began, c.ack, c.resource_version, c.moved_at, c.moved_by,
        c.fencing_token, c.lease_holder, c.lease_expires
    from <<schema>>.[consumers] as c
    where c.feed_id = @feed_id and (@consumer is null or c.consumer = @consumer)
    order by c.consumer, c.shard;
end
