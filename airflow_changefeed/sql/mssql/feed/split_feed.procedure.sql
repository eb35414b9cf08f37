-- Splits a range into consecutive ranges of about the same number of events.
-- @after: exclusive. @upto: inclusive. @parts: at most, 1 to 10000.
-- result: upto (inclusive), rows; ascending. The last part ends at @upto; no row when the range has no event.
-- errors: 77104 the range reaches below what was purged. 77108 @parts
-- permission: readers
create procedure <<schema>>.[split_feed:<<name>>] (
    @shard_id <<shard_type>>,
    @after binary(16),
    @upto binary(16),
    @parts int
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @rows bigint, @size bigint, @next binary(16), @last binary(16);
        declare @ends table (place bigint not null primary key, ulid binary(16) not null);
        if @parts is null or @parts not between 1 and 10000
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @parts must be 1 to 10000', 1;
        select @next = s.ulid from <<schema>>.[state:<<name>>] as s where s.shard_id = @shard_id;
        -- One upper end only, so that a range far behind the head is not read up to the head.
        select top (1) @last = f.ulid from <<schema>>.[feed:<<name>>] as f
        where f.shard_id = @shard_id and f.ulid < @next
        order by f.ulid desc;
        if @upto < @last set @last = @upto;
        select @rows = count_big(*) from <<schema>>.[feed:<<name>>] as f
        where f.shard_id = @shard_id and f.ulid > @after and f.ulid <= @last;
        set @size = (@rows + @parts - 1) / @parts;
        if @rows > 0
        begin
            insert into @ends (place, ulid)
            select n.place, n.ulid
            from (
                select f.ulid, row_number() over (order by f.ulid) as place
                from <<schema>>.[feed:<<name>>] as f
                where f.shard_id = @shard_id and f.ulid > @after and f.ulid <= @last
            ) as n
            where n.place % @size = 0 and n.place < @rows;
            insert into @ends (place, ulid) values (@rows, @upto);
        end;
        exec <<schema>>.[check_purged:<<name>>] @shard_id = @shard_id, @after = @after;
        select e.ulid as upto, e.place - lag(e.place, 1, 0) over (order by e.place) as rows
        from @ends as e
        order by e.place;
    end try
    begin catch
        throw;
    end catch;
end
