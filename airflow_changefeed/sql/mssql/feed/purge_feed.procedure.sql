-- Deletes old events from the feed, in batches; the event table is not touched. Never beyond the seal. Events that are not older than the
-- feed's max_hold_ms are kept for consumers, beyond the lowest ack (one without a row for a shard needs all of it, or everything after its
-- begin), and for snapshots that have not expired, from their begin on; older ones for nobody, so that a consumer, which every reader may
-- create, cannot stop purges forever. A consumer whose cursor is passed is lost: reading after it fails (77104). Likewise kept is an event
-- before the beginning of an export that began by itself (began = implied) which nobody has acknowledged: it lies in no consumer's
-- start_ulid to ack, in no range of its before, and in none that a dropped consumer had acknowledged. A feed of serialized writers keeps its
-- events in the user's table: this only records that they are no longer guaranteed.
-- @before: UTC, exclusive. @upto: inclusive; pass one of the two. @batch_rows: rows per transaction, 1 to 1000000. @dry_run: 1 only
--     returns what would be deleted. @shard_id: null for all shards. @lock_timeout is unused, for uniform calls: only rows are locked,
--     under the session's lock_timeout. @held: what is kept because it lies before a beginning, with the remedy, in words; null for nothing.
-- result: shard_id, rows, upto (inclusive; events up to it were deleted), held_from (the first event that is kept because it lies before a
--     beginning; null for none), held_by (JSON array: the exports that it is kept for).
-- errors: 77100 in a transaction. 77108 arguments
-- permission: operators
create or alter procedure <<schema>>.[purge_feed:<<name>>] (
    @before datetime2(3) = null,
    @upto binary(16) = null,
    @batch_rows int = 10000,
    @dry_run bit = 0,
    @shard_id <<shard_type>> = null,
    @lock_timeout int = 60000,
    @held nvarchar(2048) = null output
)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    -- The caller's rowcount limit would end loops early.
    set rowcount 0;
    begin try
        declare @found table (shard_id <<shard_type>> not null primary key, rows bigint not null, upto binary(16) not null, held_from binary(16) null, held_by nvarchar(max) not null, is_done bit not null);
        declare @acked table (after_ulid binary(16) not null, upto_ulid binary(16) not null);
        declare @shard <<shard_type>>, @text nvarchar(36), @rows bigint, @wanted binary(16), @bound binary(16), @ack binary(16), @last binary(16), @purged binary(16), @begin datetime2(3), @held_since datetime2(3);
        declare @from binary(16), @start binary(16), @end binary(16), @first binary(16), @names nvarchar(max), @milliseconds bigint;
        declare @released binary(16) = 0x00000000000000000000000000000000;
        if @@trancount > 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (purge_feed)', 0;
        if (@before is null and @upto is null) or (@before is not null and @upto is not null)
            throw 77108, N'changefeed 77108: feed "<<name_text>>": pass either @before or @upto', 1;
        if @batch_rows is null or @batch_rows not between 1 and 1000000
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @batch_rows must be 1 to 1000000', 1;
        set @wanted = case when @upto is null then <<schema>>.[below_ulid](@before) else @upto end;
        select @bound = <<schema>>.[below_ulid](f.floor_time)
        from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>> and f.floor_time > '1970-01-01';
        if @bound is null set @bound = 0x00000000000000000000000000000000;
        if @bound < @wanted set @wanted = @bound;
        select @held_since = dateadd(minute, -(f.max_hold_ms / 60000), dateadd(millisecond, -(f.max_hold_ms % 60000), <<schema>>.[now]()))
        from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>> and f.max_hold_ms > 0;
        if @held_since > '1970-01-01' set @released = <<schema>>.[below_ulid](@held_since);

        insert into @found (shard_id, rows, upto, held_by, is_done)
        select s.shard_id, 0, s.purged_upto, N'[]', 0 from <<schema>>.[state:<<name>>] as s
        where @shard_id is null or s.shard_id = @shard_id;
        select top (1) @shard = f.shard_id from @found as f where f.is_done = 0 order by f.shard_id;
        while @shard is not null
        begin
            begin transaction;
            -- Under the state row's lock, which a new consumer takes too: it is seen here, or sees the purge.
            -- A shard that a seal has not reached yet may get events below the floor.
            select @purged = s.purged_upto, @bound = <<schema>>.[below_ulid](s.time) from <<schema>>.[state:<<name>>] as s with (updlock, rowlock)
            where s.shard_id = @shard;
            if @bound > @wanted set @bound = @wanted;
            set @text = <<schema>>.[shard_text](@shard);
            set @ack = null;
            select top (1) @ack = a.ack
            from (
                select isnull(c.ack, n.begin_ulid) as ack
                from (
                    select distinct d.consumer, 0x00000000000000000000000000000000 as begin_ulid
                    from <<schema>>.[consumers] as d
                    where d.feed_id = <<feed_id>> and not exists (
                        select 1 from <<schema>>.[consumer_settings] as k where k.feed_id = <<feed_id>> and k.consumer = d.consumer
                    )
                    union all
                    select s.consumer, s.begin_ulid from <<schema>>.[consumer_settings] as s where s.feed_id = <<feed_id>>
                ) as n
                left join <<schema>>.[consumers] as c
                    on c.feed_id = <<feed_id>> and c.consumer = n.consumer and c.shard = @text
            ) as a
            order by a.ack;
            if @ack < @bound set @bound = @ack;
            set @begin = null;
            select top (1) @begin = s.begin_time from <<schema>>.[snapshots] as s
            where s.feed_id = <<feed_id>> and s.expires_at > <<schema>>.[now]()
            order by s.begin_time;
            if <<schema>>.[below_ulid](@begin) < @bound set @bound = <<schema>>.[below_ulid](@begin);
            -- To the last event that goes, so that a consumer that has read all there is does not count as lost. A row of serialized writers
            -- that is locked is passed over: its writer may wait for the state row.
            if @bound < @wanted and @bound < @released
            begin
                set @last = null;
                select top (1) @last = f.ulid from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
                where f.shard_id = @shard and f.ulid <= @released and f.ulid <= @wanted
                order by f.ulid desc;
                if @bound < @last set @bound = @last;
            end;
            if @bound < @purged set @bound = @purged;
            -- The first event that lies before an implied beginning, is young enough to be kept, and was acknowledged by nobody.
            set @first = null;
            set @names = N'[]';
            set @from = @purged;
            if @released > @from set @from = @released;
            set @start = null;
            select top (1) @start = c.start_ulid from <<schema>>.[consumers] as c
            where c.feed_id = <<feed_id>> and c.shard = @text and c.began = 'implied'
            order by c.start_ulid desc;
            if @bound < @start set @start = @bound;
            if @from < @start
            begin
                delete from @acked;
                insert into @acked (after_ulid, upto_ulid)
                select c.start_ulid, c.ack from <<schema>>.[consumers] as c
                where c.feed_id = <<feed_id>> and c.shard = @text and c.ack > c.start_ulid
                union all
                select convert(binary(16), j.after, 2), convert(binary(16), j.upto, 2)
                from <<schema>>.[consumers] as c
                cross apply openjson(c.before) with (after varchar(32), upto varchar(32)) as j
                where c.feed_id = <<feed_id>> and c.shard = @text
                union all
                select a.after_ulid, a.upto_ulid from <<schema>>.[acknowledged] as a where a.feed_id = <<feed_id>> and a.shard = @text;
            end;
            -- A seek for each gap between what was acknowledged. A locked row is passed over, as above.
            while @from < @start and @first is null
            begin
                set @end = null;
                select top (1) @end = a.upto_ulid from @acked as a
                where a.after_ulid <= @from and a.upto_ulid > @from
                order by a.upto_ulid desc;
                if @end is null
                begin
                    select top (1) @end = a.after_ulid from @acked as a where a.after_ulid > @from order by a.after_ulid;
                    if @end is null or @end > @start set @end = @start;
                    select top (1) @first = f.ulid from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
                    where f.shard_id = @shard and f.ulid > @from and f.ulid <= @end
                    order by f.ulid;
                end;
                set @from = @end;
            end;
            if @first is not null
            begin
                -- To the last event that goes: the window of the first one that stays may begin before it.
                set @bound = @purged;
                select top (1) @bound = f.ulid from <<schema>>.[feed:<<name>>] as f with (readcommittedlock, rowlock, readpast)
                where f.shard_id = @shard and f.ulid > @purged and f.ulid < @first
                order by f.ulid desc;
                select @names = concat(N'[', string_agg(convert(nvarchar(max), concat(N'"', string_escape(c.consumer, 'json'), N'"')), N',') within group (order by c.consumer), N']')
                from <<schema>>.[consumers] as c
                where c.feed_id = <<feed_id>> and c.shard = @text and c.began = 'implied' and c.start_ulid >= @first;
            end;
            -- Stored before rows are deleted, so that no reader mistakes a partly deleted range for a complete one (R12).
            if @dry_run = 0 and @bound > @purged
            begin
                update <<schema>>.[state:<<name>>] set purged_upto = @bound where shard_id = @shard and purged_upto < @bound;
                delete from <<schema>>.[acknowledged] where feed_id = <<feed_id>> and shard = @text and upto_ulid <= @bound;
            end;
            commit;
            exec <<schema>>.[purge_shard:<<name>>]
                @shard_id = @shard, @upto = @bound, @batch_rows = @batch_rows, @dry_run = @dry_run, @rows = @rows output;
            update @found set rows = @rows, upto = @bound, held_from = @first, held_by = @names, is_done = 1 where shard_id = @shard;
            set @shard = null;
            select top (1) @shard = f.shard_id from @found as f where f.is_done = 0 order by f.shard_id;
        end;
        set @held = null;
        set @first = null;
        select top (1) @first = f.held_from, @names = f.held_by from @found as f where f.held_from is not null order by f.held_from;
        if @first is not null
        begin
            set @milliseconds = convert(bigint, convert(binary(8), 0x0000 + substring(@first, 1, 6)));
            set @begin = dateadd(millisecond, @milliseconds % 86400000, dateadd(day, @milliseconds / 86400000, convert(datetime2(3), '1970-01-01')));
            set @held = concat(
                N'feed "<<name_text>>": events from ', convert(varchar(23), @begin, 126), N'Z on are kept: they lie before the beginning of export ',
                left(substring(@names, 2, len(@names) - 2), 1000), N', which its first run implied, and no consumer has acknowledged them. Backfill the export from ',
                N'then on, or accept that it does not have them: airflow-changefeed cursor accept-beginning ... --feed "<<name_text>>" --note ... --conn-id ...');
        end;
        select f.shard_id, f.rows, f.upto, f.held_from, f.held_by from @found as f order by f.shard_id;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
