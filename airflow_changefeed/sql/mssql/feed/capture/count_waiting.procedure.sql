-- Fills the caller's #shards with the number of recorded events that wait to be ordered in each, at most 10,000, and the time_hint
-- of the first: a statement of many rows is one outbox row. Open transactions are skipped.
-- permission: internal
create or alter procedure <<schema>>.[count_waiting:<<name>>]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    update s
    set waiting = (
        select isnull(sum(convert(bigint, c.changefeed_rows)), 0) from (
            select top (10000) o.changefeed_rows
            from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
            where o.shard_id = s.shard_id
        ) as c
    )
    from #shards as s;
    update #shards set waiting = 10000 where waiting > 10000;
    update s
    set waiting_since = (
        select top (1) o.time_hint
        from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
        where o.shard_id = s.shard_id
        order by o.order_sequence
    )
    from #shards as s
    where s.waiting > 0;
end
