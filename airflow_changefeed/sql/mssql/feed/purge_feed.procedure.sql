-- Deletes old events from the feed, in batches; the event table is not touched. Never beyond the seal. Events that are not older than the
-- feed's max_hold_ms are kept for consumers, beyond the lowest ack (one without a row for a shard needs all of it, or everything after its
-- begin), and for snapshots that have not expired, from their begin on; older ones for nobody, so that a consumer, which every reader may
-- create, cannot stop purges forever. A consumer whose cursor is passed is lost: reading after it fails (77104). A feed of serialized
-- writers keeps its events in the user's table: this only records that they are no longer guaranteed.
-- @before: UTC, exclusive. @upto: inclusive; pass one of the two. @batch_rows: rows per transaction, 1 to 1000000. @dry_run: 1 only
--     returns what would be deleted. @shard_id: null for all shards. @lock_timeout is unused, for uniform calls: only rows are locked,
--     under the session's lock_timeout.
-- result: shard_id, rows, upto (inclusive; events up to it were deleted).
-- errors: 77100 in a transaction. 77108 arguments
-- permission: operators
create or alter procedure <<schema>>.[purge_feed:<<name>>] (
    @before datetime2(3) = null,
    @upto binary(16) = null,
    @batch_rows int = 10000,
    @dry_run bit = 0,
    @shard_id <<shard_type>> = null,
    @lock_timeout int = 60000
)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    -- The caller's rowcount limit would end loops early.
    set rowcount 0;
    begin try
        declare @found table (shard_id <<shard_type>> not null primary key, rows bigint not null, upto binary(16) not null, is_done bit not null);
        declare @shard <<shard_type>>, @text nvarchar(36), @rows bigint, @wanted binary(16), @bound binary(16), @ack binary(16), @last binary(16), @purged binary(16), @begin datetime2(3), @held_since datetime2(3);
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

        insert into @found (shard_id, rows, upto, is_done)
        select s.shard_id, 0, s.purged_upto, 0 from <<schema>>.[state:<<name>>] as s
        where @shard_id is null or s.shard_id = @shard_id;
        select top (1) @shard = f.shard_id from @found as f where f.is_done = 0 order by f.shard_id;
        while @shard is not null
        begin
            begin transaction;
            -- Under the state row's lock, which a new consumer takes too: it is seen here, or sees the purge.
            select @purged = s.purged_upto from <<schema>>.[state:<<name>>] as s with (updlock, rowlock) where s.shard_id = @shard;
            set @bound = @wanted;
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
            -- Stored before rows are deleted, so that no reader mistakes a partly deleted range for a complete one (R12).
            if @dry_run = 0 and @bound > @purged
                update <<schema>>.[state:<<name>>] set purged_upto = @bound where shard_id = @shard and purged_upto < @bound;
            commit;
            exec <<schema>>.[purge_shard:<<name>>]
                @shard_id = @shard, @upto = @bound, @batch_rows = @batch_rows, @dry_run = @dry_run, @rows = @rows output;
            update @found set rows = @rows, upto = @bound, is_done = 1 where shard_id = @shard;
            set @shard = null;
            select top (1) @shard = f.shard_id from @found as f where f.is_done = 0 order by f.shard_id;
        end;
        select f.shard_id, f.rows, f.upto from @found as f order by f.shard_id;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
