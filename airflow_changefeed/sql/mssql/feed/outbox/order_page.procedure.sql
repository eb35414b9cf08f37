-- Orders one page of a shard's plan (plan_drain:T): moves its rows from the outbox to the feed, with ULIDs. In the caller's
-- transaction, under the shard's lock (lock_shard:T).
-- @page: of the caller's #plan. @count: rows moved; fewer than planned if another drain was first.
-- errors: 77100 outside of a transaction. 77145 what was ordered did not leave the outbox
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
            changefeed_highest bigint not null,
            order_sequence bigint not null primary key,
            time_hint datetime2(3) not null,
            <<key_definitions>>
        );
        -- All are committed, and only drains delete them. Skips rows locked by others, and seeks them by key: a scan would lock all waiting
        -- rows again for each page.
        insert into @taken (changefeed_highest, order_sequence, time_hint, <<keys>>)
        select s.highest, o.order_sequence, o.time_hint, <<outbox_keys>>
        from #plan as s
        inner loop join <<schema>>.[outbox:<<name>>] as o with (updlock, rowlock, readpast, readcommittedlock, forceseek)
            on o.shard_id = @shard_id and o.order_sequence = s.order_sequence
        where s.page = @page;
        set @count = @@rowcount;
        if @count = 0 return;

        declare @now datetime2(3) = <<schema>>.[now](), @tolerance bigint;
        select @tolerance = f.tolerance_ms from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>>;
        declare @latest datetime2(3) = dateadd(minute, @tolerance / 60000, dateadd(millisecond, @tolerance % 60000, @now));
        update @taken set time_hint = @now where time_hint > @latest;

        declare @max_time datetime2(3);
        declare @previous_time datetime2(3), @previous_high binary(8), @previous_low bigint;
        declare @next_high binary(8), @next_low bigint;
        select @max_time = max(p.time_hint) from @taken as p;
        exec <<schema>>.[update_state:<<name>>]
            @shard_id = @shard_id,
            @time_hint = @max_time,
            @count = @count,
            @previous_time = @previous_time output,
            @previous_ulid_high = @previous_high output,
            @previous_ulid_low = @previous_low output,
            @next_ulid_high = @next_high output,
            @next_ulid_low = @next_low output;

        -- The time of a ULID is the running maximum of the hints, never below the high-water time (R3). ULIDs at the high-water time
        -- continue from its last number; all others count up from one random number, whatever their times.
        insert into <<schema>>.[feed:<<name>>] (shard_id, ulid, <<keys>>)
        select
            @shard_id,
            case
                when p.changefeed_time > @previous_time
                    then convert(binary(6), datediff_big(millisecond, '1970-01-01', p.changefeed_time)) + substring(@next_high, 7, 2)
                else @previous_high
            end + convert(binary(8), case when p.changefeed_time > @previous_time then @next_low else @previous_low end + p.changefeed_place - 1),
            <<page_keys>>
        from (
            select
                q.*,
                row_number() over (order by q.changefeed_highest, q.order_sequence) as changefeed_place,
                max(q.time_hint) over (order by q.changefeed_highest, q.order_sequence rows between unbounded preceding and current row) as changefeed_time
            from @taken as q
        ) as p;

        -- Seek by key again. Our own locks do not hide rows from us.
        delete o
        from @taken as p
        inner loop join <<schema>>.[outbox:<<name>>] as o with (rowlock, readpast, readcommittedlock, forceseek)
            on o.shard_id = @shard_id and o.order_sequence = p.order_sequence;
        if @@rowcount <> @count
            throw 77145, N'changefeed 77145: feed "<<name_text>>": rows that were ordered did not leave the outbox, so nothing was ordered. Check what else changes the outbox, and retry', 1;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
