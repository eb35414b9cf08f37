-- Seals every shard of the feed: orders what is committed, then promises that no later event gets a ULID below floor(@until). Also applies
-- to shards that do not exist yet.
-- @until: UTC, exclusive, at most the database's current time. @lock_timeout: milliseconds for each shard.
-- result: shard_id, until, head; for each shard that shards:T returns. until is at least the requested time; head is the last event
--     before it, null without any.
-- errors: 77100 in a transaction. 77101 lock timeout; transient, sealing again continues. 77102 less than a minute in the future;
--     transient. 77103 further in the future. 77108 @until is missing. 77142 a capture has an open gap
-- permission: operators
create or alter procedure <<schema>>.[seal_feed:<<name>>] (
    @until datetime2(3),
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
        declare @shards table (shard_id <<shard_type>> not null primary key);
        declare @seals table (shard_id <<shard_type>> not null primary key, until datetime2(3) not null, end_ulid binary(16) null);
        declare @shard <<shard_type>>, @rows bigint, @round int, @result int, @message nvarchar(2048), @floor datetime2(3), @now datetime2(3) = <<schema>>.[now]();
        if @@trancount > 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (seal_feed)', 0;
        if @until is null
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @until is missing; pass the time to seal until, in UTC', 1;
        -- Only the database's clock decides what is in the future (R4).
        if @until > @now
        begin
            set @message = concat(N'feed "<<name_text>>" cannot be sealed until ', convert(varchar(23), @until, 126),
                N'Z: the database''s clock is at ', convert(varchar(23), @now, 126), N'Z. Retry when that time has come');
            if @until < dateadd(minute, 1, @now)
            begin
                set @message = concat(N'changefeed 77102: ', @message);
                throw 77102, @message, 1;
            end;
            set @message = concat(N'changefeed 77103: ', @message);
            throw 77103, @message, 1;
        end;

        -- Order most of the outbox first, including new shards, while the floor still lets their events keep their own time; also, a
        -- capture's check sums up what is waiting.
        insert into @shards (shard_id) select w.shard_id from <<schema>>.[waiting_shards:<<name>>]() as w;
        select top (1) @shard = s.shard_id from @shards as s order by s.shard_id;
        while @shard is not null
        begin
            exec <<schema>>.[drain_shard:<<name>>] @shard_id = @shard, @lock_timeout = @lock_timeout, @rows = @rows output;
            delete from @shards where shard_id = @shard;
            set @shard = null;
            select top (1) @shard = s.shard_id from @shards as s order by s.shard_id;
        end;

        <<check_capture>>
        -- Raise the floor before listing the shards: a shard created later begins above it, one created before is in the list. Waits for
        -- transactions that are creating a shard (R7).
        begin transaction;
        exec @result = sp_getapplock
            @Resource = N'changefeed/<<object_id>>/floor', @LockMode = N'Exclusive', @LockOwner = N'Transaction', @LockTimeout = @lock_timeout,
            @DbPrincipal = N'<<schema_text>>.users';
        if @result < 0
        begin
            set @message = concat(N'changefeed 77101: feed "<<name_text>>" was not sealed: the first transaction in a new shard has been open for longer than ', @lock_timeout, N' ms (', @result, N'). Seal again, or wait longer with @lock_timeout');
            throw 77101, @message, 1;
        end;
        update <<schema>>.[feeds] set floor_time = @until where feed_id = <<feed_id>> and floor_time < @until;
        commit;

        -- Both lists wait for state rows being written; a shard is in one of them, or begins at the floor.
        insert into @shards (shard_id) select s.shard_id from <<schema>>.[state:<<name>>] as s with (readcommittedlock);
        insert into @shards (shard_id)
        select w.shard_id from <<schema>>.[waiting_shards:<<name>>]() as w
        where not exists (select 1 from @shards as s where s.shard_id = w.shard_id);
        select top (1) @shard = s.shard_id from @shards as s order by s.shard_id;
        while @shard is not null
        begin
            -- The last drain is in one transaction: it must not have all that came while other shards were sealed.
            set @round = 0;
            set @rows = 10000;
            while @rows >= 10000 and @round < 5
            begin
                exec <<schema>>.[drain_shard:<<name>>] @shard_id = @shard, @lock_timeout = @lock_timeout, @rows = @rows output;
                set @round = @round + 1;
            end;
            exec <<schema>>.[seal_shard:<<name>>] @shard_id = @shard, @until = @until, @lock_timeout = @lock_timeout;
            delete from @shards where shard_id = @shard;
            set @shard = null;
            select top (1) @shard = s.shard_id from @shards as s order by s.shard_id;
        end;
        exec <<schema>>.[flush_log];

        -- Another seal may have raised the floor, and not sealed the shards yet.
        select @floor = f.floor_time from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>>;
        insert into @seals (shard_id, until)
        select s.shard_id, case when s.time < @floor then s.time else @floor end from <<schema>>.[state:<<name>>] as s;
        update @seals set end_ulid = <<schema>>.[floor_ulid](until);
        select s.shard_id, s.until, h.ulid as head
        from @seals as s
        outer apply (
            select top (1) f.ulid from <<schema>>.[feed:<<name>>] as f
            where f.shard_id = s.shard_id and f.ulid < s.end_ulid
            order by f.ulid desc
        ) as h
        order by s.shard_id;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
