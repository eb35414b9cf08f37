-- Holders of the shards of consumers, including exports, and waiting consumers.
-- @feed: null for all that the caller may read.
-- result: feed, consumer, shard, fencing_token, lease_holder, lease_since, lease_expires; by feed, consumer and shard. Then feed,
--     consumer, waiter, since; longest wait first.
-- errors: as find_feed
-- permission: readers of the feed
create or alter procedure <<schema>>.[list_leases] (@feed nvarchar(128) = null)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @feed_id int, @now datetime2(3) = <<schema>>.[now]();
    declare @feeds table (feed_id int not null primary key, name nvarchar(128) not null);
    if @feed is null
        insert into @feeds (feed_id, name) select f.feed_id, f.name from <<schema>>.[readable_feeds] as f;
    else
    begin
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        insert into @feeds (feed_id, name) values (@feed_id, @feed);
    end;
    select f.name as feed, c.consumer, c.shard, c.fencing_token, c.lease_holder, c.lease_since, c.lease_expires
    from @feeds as f
    inner loop join <<schema>>.[consumers] as c with (forceseek) on c.feed_id = f.feed_id
    order by f.name, c.consumer, c.shard;
    select f.name as feed, w.consumer, w.waiter, w.since
    from @feeds as f
    inner loop join <<schema>>.[lease_waiters] as w with (forceseek) on w.feed_id = f.feed_id
    where w.until > @now
    order by w.since, w.waiter;
end
