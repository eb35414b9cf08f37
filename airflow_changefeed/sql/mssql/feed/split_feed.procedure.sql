-- Splits a range into consecutive ranges of about the same number of events.
-- @after: exclusive. @upto: inclusive. @parts: at most, 1 to 10000. @rows: events in the range, if just counted; null counts them here.
--     The parts' rows are correct either way.
-- result: upto (inclusive), rows; ascending. The last part ends at @upto; no row when the range has no event.
-- errors: 77104 the range reaches below what was purged. 77108 @parts
-- permission: readers
create or alter procedure <<schema>>.[split_feed:<<name>>] (
    @shard_id <<shard_type>>,
    @after binary(16),
    @upto binary(16),
    @parts int,
    @rows bigint = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @size bigint, @skip bigint, @place int = 1, @next binary(16), @last binary(16), @begin binary(16) = @after, @end binary(16);
    declare @ends table (place int not null primary key, ulid binary(16) not null, rows bigint not null);
    if @parts is null or @parts not between 1 and 10000
        throw 77108, N'changefeed 77108: feed "<<name_text>>": @parts must be 1 to 10000', 1;
    select @next = s.ulid from <<schema>>.[state:<<name>>] as s where s.shard_id = @shard_id;
    -- A single upper bound, so that a range far before the head is not read up to the head.
    select top (1) @last = f.ulid from <<schema>>.[feed:<<name>>] as f
    where f.shard_id = @shard_id and f.ulid < @next
    order by f.ulid desc;
    if @upto < @last set @last = @upto;
    if isnull(@rows, 0) < 1
        select @rows = count_big(*) from <<schema>>.[feed:<<name>>] as f
        where f.shard_id = @shard_id and f.ulid > @after and f.ulid <= @last;
    set @size = (@rows + @parts - 1) / @parts;
    set @skip = @size - 1;
    -- A single pass: each step continues from the last border. Numbering all rows would take twice as long.
    while @rows > 0 and @place < @parts
    begin
        set @end = null;
        select @end = f.ulid from <<schema>>.[feed:<<name>>] as f
        where f.shard_id = @shard_id and f.ulid > @begin and f.ulid <= @last
        order by f.ulid offset @skip rows fetch next 1 rows only;
        if @end is null break;
        insert into @ends (place, ulid, rows) values (@place, @end, @size);
        set @begin = @end;
        set @place = @place + 1;
    end;
    select @rows = count_big(*) from <<schema>>.[feed:<<name>>] as f
    where f.shard_id = @shard_id and f.ulid > @begin and f.ulid <= @last;
    -- The last part ends where the range does, even if its last event is earlier.
    if @rows > 0
        insert into @ends (place, ulid, rows) values (@place, @upto, @rows);
    else
        update @ends set ulid = @upto where place = @place - 1;
    exec <<schema>>.[check_purged:<<name>>] @shard_id = @shard_id, @after = @after;
    select e.ulid as upto, e.rows
    from @ends as e
    order by e.place;
end
