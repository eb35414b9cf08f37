-- Holders of the shards of the feed's consumers, including exports, and waiting consumers.
-- result: feed, consumer, shard, fencing_token, lease_holder, lease_since, lease_expires; by consumer and shard. Then feed, consumer,
--     waiter, since; longest wait first.
-- permission: readers
create procedure <<schema>>.[leases:<<name>>]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @now datetime2(3) = <<schema>>.[now]();
        select N'<<name_text>>' as feed, c.consumer, c.shard, c.fencing_token, c.lease_holder, c.lease_since, c.lease_expires
        from <<schema>>.[consumers] as c
        where c.feed_id = <<feed_id>>
        order by c.consumer, c.shard;
        select N'<<name_text>>' as feed, w.consumer, w.waiter, w.since
        from <<schema>>.[lease_waiters] as w
        where w.feed_id = <<feed_id>> and w.until > @now
        order by w.since, w.waiter;
    end try
    begin catch
        throw;
    end catch;
end
