-- Fills the caller's #shards with the number of committed rows in the outbox of each, at most 10,000. Rows of open transactions are
-- skipped.
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
end
