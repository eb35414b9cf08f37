-- An overview of the feed: its shards, waiting rows, and the positions of its consumers. Never waits for a writer: locked rows are skipped.
-- Its cost grows with the shards requested.
-- @first_shard: how many shards to skip, in order: numbers ascending, UUIDs by text. @shards: maximum number returned.
-- result: feed, shard_count (total); one row.
-- result: shard_id, time, head, sealed_until, purged_upto, has_outbox (as of shards), waiting (rows in the outbox, at most 10000),
--     waiting_since (time_hint of the first of them; null without any), first_event (of the feed in the shard; null without any).
-- result: as list_cursors, and behind (events in the feed beyond the cursor, at most 10000), next_event (the first of them), before_rows
--     (events in the feed before an implied beginning that no backfill has completed, at most 10000), before_from (the first of them); of the
--     shards above, in their order.
-- result: as list_consumers.
-- result: consumer, path, checked_at, checked_by, missing, first_missing: what the newest looks at the outputs of exports found.
-- errors: 77108 arguments
-- permission: readers
create or alter procedure <<schema>>.[overview:<<name>>] (@first_shard int = 0, @shards int = 1000)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    if @first_shard is null or @first_shard < 0 or @shards is null or @shards < 0
        throw 77108, N'changefeed 77108: feed "<<name_text>>": @first_shard and @shards must be 0 or more', 1;
    declare @floor datetime2(3), @count int;
    declare @waiting table (shard_id <<shard_type>> not null primary key);
    insert into @waiting (shard_id) select w.shard_id from <<schema>>.[waiting_shards:<<name>>]() as w;
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
            select w.shard_id, 1 from @waiting as w
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
    update s
    set waiting = w.waiting, waiting_since = w.waiting_since
    from #shards as s cross apply <<schema>>.[waiting_rows:<<name>>](s.shard_id) as w;
    select N'<<name_text>>' as feed, @count as shard_count;
    select
        k.shard_id,
        isnull(s.time, @floor) as time,
        h.ulid as head,
        case when @floor > '1970-01-01' then case when s.time < @floor then s.time else @floor end end as sealed_until,
        isnull(s.purged_upto, 0x00000000000000000000000000000000) as purged_upto,
        convert(bit, case when k.waiting > 0 then 1 else 0 end) as has_outbox,
        k.waiting,
        k.waiting_since,
        o.ulid as first_event
    from #shards as k
    left join <<schema>>.[state:<<name>>] as s with (readcommittedlock, rowlock, readpast) on s.shard_id = k.shard_id
    outer apply (
        select top (1) f.ulid from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
        where f.shard_id = k.shard_id
        order by f.ulid desc
    ) as h
    outer apply (
        select top (1) f.ulid from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
        where f.shard_id = k.shard_id
        order by f.ulid
    ) as o
    order by k.place;
    -- Where an implied beginning leaves something out. Of serialized writers, whose shard one may have locked, that may include what was
    -- purged: their events stay in their table.
    create table #before (
        shard_id <<shard_type>> not null, consumer nvarchar(128) collate database_default not null, after_ulid binary(16) not null, upto_ulid binary(16) not null,
        primary key (shard_id, consumer, after_ulid)
    );
    insert into #before (shard_id, consumer, after_ulid, upto_ulid)
    select k.shard_id, c.consumer, g.after_ulid, g.upto_ulid
    from #shards as k
    inner join <<schema>>.[consumers] as c on c.feed_id = <<feed_id>> and c.shard = k.shard
    cross apply (
        select
            isnull(convert(binary(16), lag(j.upto) over (order by j.after), 2), 0x00000000000000000000000000000000) as after_ulid,
            convert(binary(16), j.after, 2) as upto_ulid
        from openjson(c.before) with (after varchar(32), upto varchar(32)) as j
        union all
        select isnull(convert(binary(16), max(j.upto), 2), 0x00000000000000000000000000000000), c.start_ulid
        from openjson(c.before) with (upto varchar(32)) as j
    ) as g
    where c.began = 'implied' and g.upto_ulid > g.after_ulid;
    update b
    set after_ulid = s.purged_upto
    from #before as b
    inner join <<schema>>.[state:<<name>>] as s with (readcommittedlock, rowlock, readpast) on s.shard_id = b.shard_id
    where s.purged_upto > b.after_ulid and s.purged_upto < b.upto_ulid;
    delete b
    from #before as b
    inner join <<schema>>.[state:<<name>>] as s with (readcommittedlock, rowlock, readpast) on s.shard_id = b.shard_id
    where s.purged_upto >= b.upto_ulid;
    select
        c.consumer, c.shard, c.start_ulid, c.ulid, c.ahead, c.before, c.began, c.ack, c.resource_version, c.moved_at, c.moved_by,
        c.fencing_token, c.lease_holder, c.lease_expires, b.behind, a.ulid as next_event, r.before_rows, e.ulid as before_from
    from #shards as k
    inner join <<schema>>.[consumers] as c on c.feed_id = <<feed_id>> and c.shard = k.shard
    cross apply (
        select count(*) as behind from (
            select top (10000) 1 as one
            from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
            where f.shard_id = k.shard_id and f.ulid > c.ulid
        ) as r
    ) as b
    outer apply (
        select top (1) f.ulid from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
        where f.shard_id = k.shard_id and f.ulid > c.ulid
        order by f.ulid
    ) as a
    cross apply (
        select count(*) as before_rows from (
            select top (10000) n.one
            from #before as g
            cross apply (
                select top (10000) 1 as one
                from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
                where f.shard_id = k.shard_id and f.ulid > g.after_ulid and f.ulid <= g.upto_ulid
            ) as n
            where g.shard_id = k.shard_id and g.consumer = c.consumer
        ) as m
    ) as r
    outer apply (
        select top (1) n.ulid
        from #before as g
        cross apply (
            select top (1) f.ulid
            from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
            where f.shard_id = k.shard_id and f.ulid > g.after_ulid and f.ulid <= g.upto_ulid
            order by f.ulid
        ) as n
        where g.shard_id = k.shard_id and g.consumer = c.consumer
        order by n.ulid
    ) as e
    order by k.place, c.consumer;
    select N'<<name_text>>' as feed, s.consumer, s.settings, s.begin_ulid, s.created_at, s.created_by, s.resource_version
    from <<schema>>.[consumer_settings] as s
    where s.feed_id = <<feed_id>>
    order by s.consumer;
    select o.consumer, o.path, o.checked_at, o.checked_by, o.missing, o.first_missing
    from <<schema>>.[output_checks] as o
    where o.feed_id = <<feed_id>>
    order by o.consumer;
end
