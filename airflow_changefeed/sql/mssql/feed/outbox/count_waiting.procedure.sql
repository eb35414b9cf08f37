-- Fills the caller's #shards with the number of committed rows in the outbox of each, at most 10,000, and the time_hint of the first.
-- Rows of open transactions are skipped.
-- permission: internal
create or alter procedure <<schema>>.[count_waiting:<<name>>]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    update s
    set waiting = (
        select count(*) from (
            select top (10000) 1 as one
            from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
            where o.shard_id = s.shard_id
        ) as c
    )
    from #shards as s;
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
