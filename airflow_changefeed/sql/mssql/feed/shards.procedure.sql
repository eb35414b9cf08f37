-- The state of each shard that had an event, even if all its rows are still in the outbox, or is the constant shard of a capture.
-- result: shard_id, time, head, sealed_until, purged_upto, has_outbox. time: the high-water time; no ULID below it will be assigned.
--     head: last event in the feed, null without any. sealed_until: null before the first seal. A seal raises the floor first and then
--     shard after shard: until then, or where it fails half-way, a shard is sealed up to its own high-water time only.
-- permission: readers
create or alter procedure <<schema>>.[shards:<<name>>]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @waiting table (shard_id <<shard_type>> not null primary key);
    insert into @waiting (shard_id) select w.shard_id from <<schema>>.[waiting_shards:<<name>>]() as w;
    declare @floor datetime2(3);
    select @floor = f.floor_time from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>>;
    select
        k.shard_id,
        k.time,
        h.ulid as head,
        case when @floor > '1970-01-01' then case when k.time < @floor then k.time else @floor end end as sealed_until,
        k.purged_upto,
        convert(bit, k.has_outbox) as has_outbox
    from (
        select s.shard_id, s.time, s.purged_upto, case when w.shard_id is null then 0 else 1 end as has_outbox
        from <<schema>>.[state:<<name>>] as s
        left join @waiting as w on w.shard_id = s.shard_id
        union all
        select w.shard_id, @floor, 0x00000000000000000000000000000000, 1
        from @waiting as w
        where not exists (select 1 from <<schema>>.[state:<<name>>] as s where s.shard_id = w.shard_id)
    ) as k
    outer apply (
        select top (1) f.ulid from <<schema>>.[feed:<<name>>] as f
        where f.shard_id = k.shard_id
        order by f.ulid desc
    ) as h
    order by k.shard_id;
end
