-- Counts the events in the feed, not in the outbox, for each of many ranges.
-- @ranges: for each range after (16 bytes, exclusive) and upto (16 bytes, inclusive), concatenated; ascending.
-- result: place (from 1), rows.
-- errors: 77104 a range reaches below what was purged
-- permission: readers
create or alter procedure <<schema>>.[count_feed:<<name>>] (
    @shard_id <<shard_type>>,
    @ranges varbinary(max)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @number int = datalength(@ranges) / 32, @place int = 0, @next binary(16), @last binary(16), @after binary(16), @message nvarchar(2048);
    declare @counted table (place int not null primary key, after_ulid binary(16) not null, upto_ulid binary(16) not null, rows bigint not null);
    while @place < @number
    begin
        set @place = @place + 1;
        insert into @counted (place, after_ulid, upto_ulid, rows)
        values (@place, substring(@ranges, @place * 32 - 31, 16), substring(@ranges, @place * 32 - 15, 16), 0);
    end;
    select @next = s.ulid from <<schema>>.[state:<<name>>] as s where s.shard_id = @shard_id;
    -- A single upper bound, so that a range far before the head is not read up to the head.
    select top (1) @last = f.ulid from <<schema>>.[feed:<<name>>] as f
    where f.shard_id = @shard_id and f.ulid < @next
    order by f.ulid desc;
    update c
    set rows = (
        select count_big(*) from <<schema>>.[feed:<<name>>] as f
        where f.shard_id = @shard_id and f.ulid > c.after_ulid
            and f.ulid <= case when c.upto_ulid < @last then c.upto_ulid else @last end
    )
    from @counted as c;
    -- Checked afterwards, because a purge stores its bound before it deletes rows (R12).
    set @after = substring(@ranges, 1, 16);
    if @number > 0 exec <<schema>>.[check_purged:<<name>>] @shard_id = @shard_id, @after = @after;
    select c.place, c.rows from @counted as c order by c.place;
end
