-- The number of recorded events of a shard that wait to be ordered, at most 10,000, and the time_hint of the first; null without any: a
-- statement of many rows is one outbox row. Open transactions are skipped. The caller has set read committed.
-- permission: internal
create or alter function <<schema>>.[waiting_rows:<<name>>](@shard_id <<shard_type>>) returns table
as
return
select
    case when s.waiting > 10000 then 10000 else s.waiting end as waiting,
    (
        select top (1) o.time_hint
        from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
        where o.shard_id = @shard_id
        order by o.order_sequence
    ) as waiting_since
from (
    select isnull(sum(convert(bigint, c.changefeed_rows)), 0) as waiting
    from (
        select top (10000) o.changefeed_rows
        from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
        where o.shard_id = @shard_id
    ) as c
) as s;
