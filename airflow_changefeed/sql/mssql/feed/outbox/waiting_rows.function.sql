-- The number of committed rows in the outbox of a shard, at most 10,000, and the time_hint of the first; null without any. Rows of open
-- transactions are skipped. The caller has set read committed.
-- permission: internal
create or alter function <<schema>>.[waiting_rows:<<name>>](@shard_id <<shard_type>>) returns table
as
return
select
    count(*) as waiting,
    (
        select top (1) o.time_hint
        from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
        where o.shard_id = @shard_id
        order by o.order_sequence
    ) as waiting_since
from (
    select top (10000) 1 as one
    from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
    where o.shard_id = @shard_id
) as c;
