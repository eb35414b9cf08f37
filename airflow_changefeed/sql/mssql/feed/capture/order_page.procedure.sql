-- Orders one page of a shard's plan (plan_drain:T): expands what the outbox has of each statement into the feed of a capture, with
-- ULIDs. In the caller's transaction, under the shard's lock (lock_shard:T).
-- All events of a transaction get the same feed time, so that no seal splits it.
-- @page: of the caller's #plan. @count: events ordered; fewer than planned if another drain was first.
-- errors: 77100 outside of a transaction. 77142 a captured event was deleted from the capture's table. 77145 what was ordered did not
--     leave the outbox
-- permission: internal
create or alter procedure <<schema>>.[order_page:<<name>>] (
    @shard_id <<shard_type>>,
    @page bigint,
    @count int output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        if @@trancount = 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure inside a transaction (order_page)', 0;

        -- The state row before any row leaves the outbox: a seal that lists shards finds this one in one of the two (R7).
        exec <<schema>>.[update_state:<<name>>] @shard_id = @shard_id, @time_hint = '1970-01-01', @count = 0;

        declare @taken table (
            highest bigint not null,
            order_sequence bigint not null primary key,
            time_hint datetime2(3) not null,
            first_row int not null,
            row_count int not null,
            table_no smallint not null,
            balance int not null
        );
        declare @rows bigint, @inserted bigint, @statements int, @message nvarchar(2048);
        set @count = 0;
        -- All are committed, and only drains delete them. Skips rows locked by others, and seeks them by key: a scan would lock all waiting
        -- rows again for each page.
        insert into @taken (highest, order_sequence, time_hint, first_row, row_count, table_no, balance)
        select s.highest, o.order_sequence, o.time_hint, o.changefeed_first, o.changefeed_rows, o.changefeed_table, o.changefeed_balance
        from #plan as s
        inner loop join <<schema>>.[outbox:<<name>>] as o with (updlock, rowlock, readpast, readcommittedlock, forceseek)
            on o.shard_id = @shard_id and o.order_sequence = s.order_sequence
        where s.page = @page;
        set @statements = @@rowcount;
        select @rows = sum(convert(bigint, p.row_count)) from @taken as p;
        if @rows is null return;
        set @count = @rows;

        declare @now datetime2(3) = <<schema>>.[now](), @tolerance bigint;
        select @tolerance = f.tolerance_ms from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>>;
        declare @latest datetime2(3) = dateadd(minute, @tolerance / 60000, dateadd(millisecond, @tolerance % 60000, @now));
        update @taken set time_hint = @now where time_hint > @latest;
        declare @max_time datetime2(3), @before bigint;
        declare @previous_time datetime2(3), @previous_high binary(8), @previous_low bigint;
        declare @next_high binary(8), @next_low bigint;
        select @max_time = max(p.time_hint) from @taken as p;
        exec <<schema>>.[update_state:<<name>>]
            @shard_id = @shard_id,
            @time_hint = @max_time,
            @count = @rows,
            @previous_time = @previous_time output,
            @previous_ulid_high = @previous_high output,
            @previous_ulid_low = @previous_low output,
            @next_ulid_high = @next_high output,
            @next_ulid_low = @next_low output;
        select @before = s.events from <<schema>>.[state:<<name>>] as s where s.shard_id = @shard_id;
        update <<schema>>.[state:<<name>>] set events = events + @rows where shard_id = @shard_id;

        -- Before a row leaves the outbox: a reader that sums up both waits for this row, and so sees both changes or none.
        insert into <<schema>>.[balance:<<name>>] (shard_id, table_no, rows)
        select distinct @shard_id, p.table_no, 0
        from @taken as p
        where not exists (select 1 from <<schema>>.[balance:<<name>>] as b where b.shard_id = @shard_id and b.table_no = p.table_no);
        update b
        set rows = b.rows + g.balance
        from <<schema>>.[balance:<<name>>] as b
        inner join (select p.table_no, sum(convert(bigint, p.balance)) as balance from @taken as p group by p.table_no) as g
            on g.table_no = b.table_no
        where b.shard_id = @shard_id;

        -- The time of a ULID is the running maximum of the hints, never below the high-water time (R3). ULIDs at the high-water time
        -- continue from its last number; all others count up from one random number, whatever their times.
        -- A transaction that is larger than a page is ordered whole: by pages, a lock for each of its rows might take the server's memory.
        if @rows <= 100000
        begin
            insert into <<schema>>.[feed:<<name>>] (shard_id, ulid, <<keys>>, changefeed_sequence)
            select
                @shard_id,
                case
                    when n.changefeed_time > @previous_time
                        then convert(binary(6), datediff_big(millisecond, '1970-01-01', n.changefeed_time)) + substring(@next_high, 7, 2)
                    else @previous_high
                end + convert(binary(8), case when n.changefeed_time > @previous_time then @next_low else @previous_low end + n.changefeed_place - 1),
                <<numbered_keys>>,
                @before + n.changefeed_place
            from (
                select
                    e.changefeed_statement,
                    e.changefeed_row,
                    row_number() over (order by t.changefeed_highest, t.order_sequence, e.changefeed_row) as changefeed_place,
                    max(t.changefeed_hint) over (order by t.changefeed_highest, t.order_sequence, e.changefeed_row
                        rows between unbounded preceding and current row) as changefeed_time
                from (
                    select
                        p.order_sequence,
                        p.first_row,
                        p.row_count,
                        p.highest as changefeed_highest,
                        max(p.time_hint) over (partition by p.highest) as changefeed_hint
                    from @taken as p
                ) as t
                -- Seek by key: a scan of the table would wait for open writers.
                inner join <<table>> as e with (forceseek)
                    on e.changefeed_statement = t.order_sequence
                    and e.changefeed_row >= t.first_row
                    and e.changefeed_row < t.first_row + t.row_count
                    and (e.changefeed_image = 1 or e.changefeed_op = 'd')
            ) as n;
            set @inserted = @@rowcount;
        end
        else
        begin
            insert into <<schema>>.[feed:<<name>>] with (paglock) (shard_id, ulid, <<keys>>, changefeed_sequence)
            select
                @shard_id,
                case
                    when n.changefeed_time > @previous_time
                        then convert(binary(6), datediff_big(millisecond, '1970-01-01', n.changefeed_time)) + substring(@next_high, 7, 2)
                    else @previous_high
                end + convert(binary(8), case when n.changefeed_time > @previous_time then @next_low else @previous_low end + n.changefeed_place - 1),
                <<numbered_keys>>,
                @before + n.changefeed_place
            from (
                select
                    e.changefeed_statement,
                    e.changefeed_row,
                    row_number() over (order by t.changefeed_highest, t.order_sequence, e.changefeed_row) as changefeed_place,
                    max(t.changefeed_hint) over (order by t.changefeed_highest, t.order_sequence, e.changefeed_row
                        rows between unbounded preceding and current row) as changefeed_time
                from (
                    select
                        p.order_sequence,
                        p.first_row,
                        p.row_count,
                        p.highest as changefeed_highest,
                        max(p.time_hint) over (partition by p.highest) as changefeed_hint
                    from @taken as p
                ) as t
                -- Seek by key: a scan of the table would wait for open writers.
                inner join <<table>> as e with (forceseek)
                    on e.changefeed_statement = t.order_sequence
                    and e.changefeed_row >= t.first_row
                    and e.changefeed_row < t.first_row + t.row_count
                    and (e.changefeed_image = 1 or e.changefeed_op = 'd')
            ) as n;
            set @inserted = @@rowcount;
        end;
        if @inserted <> @rows
        begin
            set @message = concat(N'changefeed 77142: feed "<<name_text>>" shard ', <<schema>>.[shard_text](@shard_id),
                N': captured events were deleted from its table, so they cannot be ordered. Restore them, or drop the feed and enable the capture again');
            throw 77142, @message, 1;
        end;

        -- Seek by key again. Our own locks do not hide rows from us.
        delete o
        from @taken as p
        inner loop join <<schema>>.[outbox:<<name>>] as o with (rowlock, readpast, readcommittedlock, forceseek)
            on o.shard_id = @shard_id and o.order_sequence = p.order_sequence;
        if @@rowcount <> @statements
            throw 77145, N'changefeed 77145: feed "<<name_text>>": rows that were ordered did not leave the outbox, so nothing was ordered. Check what else changes the outbox, and retry', 1;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
