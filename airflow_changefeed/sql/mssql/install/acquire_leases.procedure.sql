-- Acquires leases of a consumer's shards, and extends those that the holder has. ADR 0008.
-- @shards: JSON array of those to acquire; they get a new fencing token, also where the lease already is the holder's own.
-- @holder: a unique name. @seconds: until they expire by the database's clock.
-- @tokens: JSON object, fencing tokens by shard, of leases to extend. A token that is still the newest is kept, even if the lease has
--     expired; a lost lease is not acquired again. @at_most: maximum number to acquire; null for all.
-- @all_or_none: 0 for a consumer: acquires what is free (released, expired, or the holder's own). A shard without a row begins where the
--     consumer's later shards do, or at its end if its high-water time is lower. A holder without any lease is registered as waiting for
--     @seconds; one with a lease is not. 1 for an export, or for a person who moves a cursor: acquires all, or throws.
-- @lock_timeout: milliseconds to wait for others who begin shards.
-- result: asked_at, free_at (when the first of the others' leases on @shards expires), waiting (number of others without any shard),
--     has_retries (whether the consumer has dead letters to retry). Then as list_cursors, of the leases acquired or extended.
-- @fencing_token: of the leases acquired; null if none. @cursor: the last ULID consumed, where one was acquired.
-- errors: as find_feed. 77100 in a transaction. 77101 lock timeout; transient. 77108 arguments. 77131 a shard has no row. 77134 another
--     holder has one; transient. 77135 the consumer belongs to another user. 77151 no such consumer
-- permission: readers of the feed
create or alter procedure <<schema>>.[acquire_leases] (
    @feed nvarchar(128),
    @consumer nvarchar(128),
    @shards nvarchar(max),
    @holder nvarchar(256),
    @seconds float,
    @tokens nvarchar(max) = N'{}',
    @at_most int = null,
    @all_or_none bit = 0,
    @lock_timeout int = 60000,
    @fencing_token bigint = null output,
    @cursor binary(16) = null output
)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        declare @feed_id int, @message nvarchar(2048), @now datetime2(3), @begin nvarchar(1000), @shard nvarchar(36), @present nvarchar(256);
        declare @expires datetime2(3), @is_export bit, @has_any bit, @token bigint;
        -- With the tokens of the leases that the holder has by this call.
        declare @held table (shard nvarchar(36) not null primary key, fencing_token bigint not null);
        declare @asked table (place int not null, shard nvarchar(36) not null primary key);
        declare @free table (place int not null, shard nvarchar(36) not null primary key);
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        if @@trancount > 0
        begin
            set @message = concat(N'changefeed 77100: feed "', @feed, N'": please call this procedure outside of any transaction (acquire_leases)');
            throw 77100, @message, 0;
        end;
        if @seconds is null or @seconds <= 0 or @seconds > 31622400
        begin
            set @message = concat(N'changefeed 77108: feed "', @feed, N'": a lease must last more than 0 and at most 31622400 seconds');
            throw 77108, @message, 1;
        end;
        if isnull(@holder, N'') = N'' or @at_most < 1 or (@at_most is not null and @all_or_none = 1)
        begin
            set @message = concat(N'changefeed 77108: feed "', @feed, N'": @holder must not be empty, and @at_most must be 1 or more, and null with @all_or_none');
            throw 77108, @message, 1;
        end;
        insert into @held (shard, fencing_token) select lower(j.[key]), convert(bigint, j.value) from openjson(@tokens) as j;
        insert into @asked (place, shard)
        select min(convert(int, j.[key])), lower(j.value) from openjson(@shards) as j
        where not exists (select 1 from @held as h where h.shard = lower(j.value))
        group by lower(j.value);
        set @all_or_none = isnull(@all_or_none, 0);
        set @fencing_token = null;
        set @cursor = null;
        set @is_export = case when exists (
            select 1 from <<schema>>.[consumer_settings] as s where s.feed_id = @feed_id and s.consumer = @consumer
        ) then 0 else 1 end;
        if @all_or_none = 0 and exists (
            select 1 from @asked as a
            left join <<schema>>.[consumers] as c on c.feed_id = @feed_id and c.consumer = @consumer and c.shard = a.shard
            where c.shard is null
        )
        begin
            set @begin = concat(N'exec <<schema_in_text>>.', quotename(concat(N'begin_shards:', @feed)), N' @consumer, @shards, @lock_timeout');
            exec sys.sp_executesql @begin, N'@consumer nvarchar(128), @shards nvarchar(max), @lock_timeout int', @consumer = @consumer, @shards = @shards, @lock_timeout = @lock_timeout;
            -- One written in another way than the database writes it ("01") has no row of its own.
            select top (1) @shard = a.shard from @asked as a
            where not exists (select 1 from <<schema>>.[consumers] as c where c.feed_id = @feed_id and c.consumer = @consumer and c.shard = a.shard)
            order by a.place;
            if @shard is not null exec <<schema>>.[check_consumer] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer, @shard = @shard;
        end;
        if @all_or_none = 1 exec <<schema>>.[check_owner] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer;
        begin transaction;
        if @all_or_none = 0
            exec <<schema>>.[check_settings] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer;
        else
        begin
            -- Waits for each row, in the order in which others lock several; not for the settings, which would stop renewals meanwhile.
            select @shard = min(a.shard collate Latin1_General_BIN2) from @asked as a;
            while @shard is not null
            begin
                exec <<schema>>.[check_consumer] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer, @shard = @shard;
                select @shard = min(a.shard collate Latin1_General_BIN2) from @asked as a where a.shard collate Latin1_General_BIN2 > @shard;
            end;
        end;
        -- After the waits: a lease that expired meanwhile is free, and a new one lasts from now.
        set @now = <<schema>>.[now]();
        -- Row by row: a scan would wait for rows that other holders have locked.
        update c
        set lease_expires = <<schema>>.[later](@now, @seconds)
        from @held as h
        inner loop join <<schema>>.[consumers] as c with (rowlock, forceseek)
            on c.feed_id = @feed_id and c.consumer = @consumer and c.shard = h.shard
        where c.fencing_token = h.fencing_token and c.lease_holder = @holder;
        if @all_or_none = 1
        begin
            select top (1) @shard = c.shard, @present = c.lease_holder, @expires = c.lease_expires
            from @asked as a
            inner loop join <<schema>>.[consumers] as c with (forceseek)
                on c.feed_id = @feed_id and c.consumer = @consumer and c.shard = a.shard
            where c.lease_holder <> @holder and c.lease_expires > @now
            order by a.place;
            if @present is not null
            begin
                set @message = concat(
                    N'changefeed 77134: consumer "', @consumer, N'", feed "', @feed, N'", shard ', @shard, N' is leased to "', @present,
                    N'" until ', convert(varchar(23), @expires, 126), N'Z; retry then');
                throw 77134, @message, 1;
            end;
        end;
        if exists (select 1 from @asked) set @token = next value for <<schema>>.[fencing_token];
        -- A row locked by a consuming transaction belongs to its holder, even past its expiry. One with a higher token was granted after
        -- this one was drawn.
        insert into @free (place, shard)
        select row_number() over (order by case when c.lease_holder = @holder then 0 else 1 end, a.place), a.shard
        from @asked as a
        inner loop join <<schema>>.[consumers] as c with (rowlock, updlock, readpast, readcommittedlock, forceseek)
            on c.feed_id = @feed_id and c.consumer = @consumer and c.shard = a.shard
        where c.fencing_token < @token and (c.lease_holder is null or c.lease_holder = @holder or c.lease_expires <= @now);
        delete from @free where place > @at_most;
        update c
        set fencing_token = @token,
            lease_holder = @holder,
            lease_expires = <<schema>>.[later](@now, @seconds),
            -- Not shown for exports.
            lease_since = case when @is_export = 0 then @now end
        from <<schema>>.[consumers] as c with (rowlock, updlock, readpast, readcommittedlock)
        inner join @free as f on f.shard = c.shard
        where c.feed_id = @feed_id and c.consumer = @consumer
            and c.fencing_token < @token and (c.lease_holder is null or c.lease_holder = @holder or c.lease_expires <= @now);
        insert into @held (shard, fencing_token) select f.shard, @token from @free as f;
        if @all_or_none = 0 and exists (select 1 from @asked)
        begin
            set @has_any = case when exists (
                select 1 from <<schema>>.[consumers] as c with (rowlock, readpast, readcommittedlock)
                where c.feed_id = @feed_id and c.consumer = @consumer and c.lease_holder = @holder and c.lease_expires > @now
            ) then 1 else 0 end;
            delete from <<schema>>.[lease_waiters]
            where feed_id = @feed_id and consumer = @consumer and (until <= @now or (waiter = @holder and @has_any = 1));
            update <<schema>>.[lease_waiters] set until = <<schema>>.[later](@now, @seconds)
            where feed_id = @feed_id and consumer = @consumer and waiter = @holder;
            if @@rowcount = 0 and @has_any = 0
                insert into <<schema>>.[lease_waiters] (feed_id, consumer, waiter, since, until)
                values (@feed_id, @consumer, @holder, @now, <<schema>>.[later](@now, @seconds));
        end;
        commit;
        select @fencing_token = c.fencing_token, @cursor = c.ulid
        from @free as f
        inner loop join <<schema>>.[consumers] as c with (forceseek)
            on c.feed_id = @feed_id and c.consumer = @consumer and c.shard = f.shard
        where c.fencing_token = @token;
        -- A row that a transaction has locked is left out.
        select @expires = min(c.lease_expires)
        from @asked as a
        inner join <<schema>>.[consumers] as c with (rowlock, readpast, readcommittedlock)
            on c.feed_id = @feed_id and c.consumer = @consumer and c.shard = a.shard
        where c.lease_holder <> @holder and c.lease_expires > @now;
        select
            @now as asked_at, @expires as free_at,
            (
                select count(*) from <<schema>>.[lease_waiters] as w
                where w.feed_id = @feed_id and w.consumer = @consumer and w.until > @now and w.waiter <> @holder
            ) as waiting,
            convert(bit, case when exists (
                select 1 from <<schema>>.[dead_letters] as d
                where d.feed_id = @feed_id and d.consumer = @consumer and d.state = 'retry'
            ) then 1 else 0 end) as has_retries;
        select
            c.consumer, c.shard, c.start_ulid, c.ulid, c.ahead, c.before, c.began, c.ack, c.resource_version, c.moved_at, c.moved_by,
            c.fencing_token, c.lease_holder, c.lease_expires
        from @held as h
        inner loop join <<schema>>.[consumers] as c with (forceseek)
            on c.feed_id = @feed_id and c.consumer = @consumer and c.shard = h.shard
        where c.fencing_token = h.fencing_token and c.lease_holder = @holder
        order by c.shard;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
