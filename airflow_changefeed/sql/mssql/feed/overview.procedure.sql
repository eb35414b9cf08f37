-- An overview of the feed: its shards, waiting rows, and the positions of its consumers. Never waits for a writer: locked rows are skipped.
-- Its cost grows with the shards requested.
-- @first_shard: how many shards to skip, in order: numbers ascending, UUIDs by text. @shards: maximum number returned.
-- result: feed, shard_count (total); one row.
-- result: shard_id, time, head, sealed_until, purged_upto, has_outbox (as of shards), waiting (rows in the outbox, at most 10000),
--     waiting_since (time_hint of the first of them; null without any).
-- result: as list_cursors, and behind (events in the feed beyond the cursor, at most 10000); of the shards above, in their order.
-- result: as list_consumers.
-- errors: 77108 arguments
-- permission: readers
create or alter procedure <<schema>>.[overview:<<name>>] (@first_shard int = 0, @shards int = 1000)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        if @first_shard is null or @first_shard < 0 or @shards is null or @shards < 0
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @first_shard and @shards must be 0 or more', 1;
        declare @floor datetime2(3), @count int;
        create table #waiting (shard_id <<shard_type>> not null primary key);
        exec <<schema>>.[waiting:<<name>>];
        create table #shards (
            shard_id <<shard_type>> not null primary key, shard nvarchar(36) collate database_default not null, place int not null, waiting bigint not null,
            waiting_since datetime2(3) null
        );
        select @floor = f.floor_time from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>>;
        insert into #shards (shard_id, shard, place, waiting)
        select n.shard_id, n.shard, row_number() over (order by case when len(n.shard) < 36 then convert(bigint, n.shard) end, n.shard) - 1, 0
        from (
            select u.shard_id, lower(convert(nvarchar(36), u.shard_id)) as shard
            from (
                select s.shard_id, 1 as is_used
                from <<schema>>.[state:<<name>>] as s with (readcommittedlock, rowlock, readpast)
                union all
                select w.shard_id, 1 from #waiting as w
                union all
                -- A succession of serialized writers may keep their shard's state row locked during every poll.
                select convert(<<shard_type>>, c.shard), 0 from <<schema>>.[consumers] as c where c.feed_id = <<feed_id>>
            ) as u
            group by u.shard_id
            having max(u.is_used) = 1 or exists (
                select 1 from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast) where f.shard_id = u.shard_id)
        ) as n;
        select @count = count(*) from #shards as s;
        delete from #shards where place < @first_shard or place - @first_shard >= @shards;
        exec <<schema>>.[count_waiting:<<name>>];
        select N'<<name_text>>' as feed, @count as shard_count;
        select
            k.shard_id,
            case when s.time > @floor then s.time else @floor end as time,
            h.ulid as head,
            case when @floor > '1970-01-01' then @floor end as sealed_until,
            isnull(s.purged_upto, 0x00000000000000000000000000000000) as purged_upto,
            convert(bit, case when k.waiting > 0 then 1 else 0 end) as has_outbox,
            k.waiting,
            k.waiting_since
        from #shards as k
        left join <<schema>>.[state:<<name>>] as s with (readcommittedlock, rowlock, readpast) on s.shard_id = k.shard_id
        outer apply (
            select top (1) f.ulid from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
            where f.shard_id = k.shard_id
            order by f.ulid desc
        ) as h
        order by k.place;
        select
            c.consumer, c.shard, c.start_ulid, c.ulid, c.ahead, c.ack, c.resource_version, c.moved_at, c.moved_by,
            c.fencing_token, c.lease_holder, c.lease_expires, b.behind
        from #shards as k
        inner join <<schema>>.[consumers] as c on c.feed_id = <<feed_id>> and c.shard = k.shard
        cross apply (
            select count(*) as behind from (
                select top (10000) 1 as one
                from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
                where f.shard_id = k.shard_id and f.ulid > c.ulid
            ) as r
        ) as b
        order by k.place, c.consumer;
        select N'<<name_text>>' as feed, s.consumer, s.settings, s.begin_ulid, s.created_at, s.created_by, s.resource_version
        from <<schema>>.[consumer_settings] as s
        where s.feed_id = <<feed_id>>
        order by s.consumer;
    end try
    begin catch
        throw;
    end catch;
end
