-- Polls for new events without writing or waiting for a writer: locked rows do not count yet. Its cost grows with shards.
-- @consumer: whose cursors count; if @consumers is null too, only the second result has rows.
-- @consumers: JSON array of names, for the third result: many watchers of a feed cost one poll.
-- result: feed, at, has_table; one row. at: the database's clock, read first. has_table: whether the caller sees
--     the event table.
-- result: shard_id, head, has_outbox, after_ulid; for each shard that shards:T returns. head: the last event in the feed, null without
--     any. after_ulid: the cursor of @consumer, null without any.
-- result: place, shard_id, after_ulid; only with @consumers, the cursors of each. place: index in the array, from 0.
-- permission: readers
create or alter procedure <<schema>>.[poll_feed:<<name>>] (@consumer nvarchar(128) = null, @consumers nvarchar(max) = null)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    if @consumer is not null or @consumers is not null
        select
            N'<<name_text>>' as feed,
            <<schema>>.[now]() as at,
            convert(bit, case when object_name(<<object_id>>) is null then 0 else 1 end) as has_table;
    -- The place of @consumer is -1.
    create table #after (
        place int not null, shard_id <<shard_type>> not null, ulid binary(16) not null, primary key (place, shard_id)
    );
    insert into #after (place, shard_id, ulid)
    select -1, convert(<<shard_type>>, c.shard), c.ulid from <<schema>>.[consumers] as c
    where c.feed_id = <<feed_id>> and c.consumer = @consumer;
    if @consumers is not null
        insert into #after (place, shard_id, ulid)
        select convert(int, j.[key]), convert(<<shard_type>>, c.shard), c.ulid
        from openjson(@consumers) as j
        -- By the key, row by row: a scan would wait for rows of consumers that were not asked for.
        inner loop join <<schema>>.[consumers] as c with (forceseek)
            on c.feed_id = <<feed_id>> and c.consumer = convert(nvarchar(128), j.value) collate database_default;
    declare @waiting table (shard_id <<shard_type>> not null primary key);
    insert into @waiting (shard_id) select w.shard_id from <<schema>>.[waiting_shards:<<name>>]() as w;
    select k.shard_id, h.ulid as head, convert(bit, k.has_outbox) as has_outbox, a.ulid as after_ulid
    from (
        select u.shard_id, max(u.has_outbox) as has_outbox, max(u.is_used) as is_used
        from (
            select s.shard_id, 0 as has_outbox, 1 as is_used
            from <<schema>>.[state:<<name>>] as s with (readcommittedlock, rowlock, readpast)
            union all
            select w.shard_id, 1, 1 from @waiting as w
            union all
            -- A succession of serialized writers may keep their shard's state row locked during every poll.
            select p.shard_id, 0, 0 from #after as p
        ) as u
        group by u.shard_id
    ) as k
    left join #after as a on a.place = -1 and a.shard_id = k.shard_id
    outer apply (
        select top (1) f.ulid from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
        where f.shard_id = k.shard_id
        order by f.ulid desc
    ) as h
    where k.is_used = 1 or h.ulid is not null
    order by k.shard_id;
    if @consumers is not null
        select a.place, a.shard_id, a.ulid as after_ulid from #after as a where a.place >= 0
        order by a.place, a.shard_id;
end
