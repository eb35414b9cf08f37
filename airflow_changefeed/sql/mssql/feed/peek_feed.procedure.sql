-- Looks for news without writing or waiting: rows that somebody holds locked are no news yet. Its cost grows with shards.
-- result: shard_id, head, has_outbox; for each shard that has committed events. head is the last one in the feed, null
--     without any.
-- permission: readers
create procedure <<schema>>.[peek_feed:<<name>>]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        create table #waiting (shard_id <<shard_type>> not null primary key);
        exec <<schema>>.[waiting:<<name>>];
        select
            k.shard_id,
            h.ulid as head,
            convert(bit, max(k.has_outbox)) as has_outbox
        from (
            select s.shard_id, 0 as has_outbox
            from <<schema>>.[state:<<name>>] as s with (readcommittedlock, rowlock, readpast)
            union all
            select w.shard_id, 1 from #waiting as w
        ) as k
        outer apply (
            select top (1) f.ulid from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
            where f.shard_id = k.shard_id
            order by f.ulid desc
        ) as h
        group by k.shard_id, h.ulid
        order by k.shard_id;
    end try
    begin catch
        throw;
    end catch;
end
