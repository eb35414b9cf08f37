-- Acquires the leases that are free, released, expired, or already the holder's own. A shard without a row begins where the consumer's
-- later shards do, or at its end if its high-water time is lower. A holder without any lease is registered as waiting for @seconds; one
-- with a lease is not.
-- @shards: JSON array. @holder: a unique name. @seconds: until they expire by the database's clock. @at_most: maximum number; null for all.
-- result: as list_cursors, for the requested shards, and is_granted, asked_at. A shard locked at the moment may be missing.
-- errors: 77100 in a transaction. 77101 lock timeout; transient. 77108 arguments. 77135 it belongs to another user. 77151 no such consumer
-- permission: readers
create procedure <<schema>>.[request_leases:<<name>>] (
    @consumer nvarchar(128),
    @shards nvarchar(max),
    @holder nvarchar(256),
    @seconds float,
    @at_most int = null,
    @lock_timeout int = 60000
)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        declare @now datetime2(3), @token bigint, @begin binary(16), @floor binary(16), @count int, @created_by nvarchar(256), @owner nvarchar(128);
        declare @asked table (place int not null, shard nvarchar(36) not null primary key, shard_id <<shard_type>> not null);
        declare @begun table (shard nvarchar(36) not null primary key, begin_ulid binary(16) not null);
        declare @free table (place int not null, shard nvarchar(36) not null primary key);
        if @@trancount > 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (request_leases)', 0;
        if @seconds is null or @seconds <= 0 or @seconds > 31622400
            throw 77108, N'changefeed 77108: feed "<<name_text>>": a lease must last more than 0 and at most 31622400 seconds', 1;
        if isnull(@holder, N'') = N'' or @at_most < 1
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @holder must not be empty, and @at_most must be 1 or more', 1;
        insert into @asked (place, shard, shard_id)
        select min(convert(int, j.[key])), <<schema>>.[shard_text](convert(<<shard_type>>, j.value)), convert(<<shard_type>>, j.value)
        from openjson(@shards) as j
        group by j.value;
        if exists (
            select 1 from @asked as a
            left join <<schema>>.[consumers] as c on c.feed_id = <<feed_id>> and c.consumer = @consumer and c.shard = a.shard
            where c.shard is null
        )
        begin
            begin transaction;
            exec <<schema>>.[lock_consumers] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @lock_timeout = @lock_timeout;
            -- A purge takes this lock too: it sees these rows, or the consumer's settings, which imply them.
            select @count = count(*) from <<schema>>.[state:<<name>>] as s with (updlock, rowlock)
            where s.shard_id in (select a.shard_id from @asked as a);
            exec <<schema>>.[check_settings] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @consumer = @consumer;
            select @begin = s.begin_ulid, @created_by = s.created_by, @owner = s.owner from <<schema>>.[consumer_settings] as s
            where s.feed_id = <<feed_id>> and s.consumer = @consumer;
            -- A shard refuses a cursor beyond its high-water time; all its later events are after its head anyway.
            select @floor = <<schema>>.[previous_ulid](<<schema>>.[floor_ulid](f.floor_time)) from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>>;
            if @floor > @begin set @floor = @begin;
            insert into @begun (shard, begin_ulid)
            select a.shard, @begin from @asked as a
            inner join <<schema>>.[state:<<name>>] as s on s.shard_id = a.shard_id
            where s.ulid > @begin
            union all
            select a.shard, convert(binary(16), <<schema>>.[previous_ulid](s.ulid)) from @asked as a
            inner join <<schema>>.[state:<<name>>] as s on s.shard_id = a.shard_id
            where s.ulid <= @begin
            union all
            select a.shard, @floor from @asked as a
            where not exists (select 1 from <<schema>>.[state:<<name>>] as s where s.shard_id = a.shard_id);
            insert into <<schema>>.[consumers] (feed_id, consumer, shard, start_ulid, ulid, ack, resource_version, moved_at, moved_by, owner)
            select
                <<feed_id>>, @consumer, b.shard, b.begin_ulid, b.begin_ulid, b.begin_ulid,
                1 + isnull((select d.resource_version from <<schema>>.[dropped_consumers] as d where d.feed = N'<<name_text>>' and d.consumer = @consumer), 0),
                <<schema>>.[now](), @created_by, @owner
            from @begun as b
            where not exists (
                select 1 from <<schema>>.[consumers] as c where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.shard = b.shard
            );
            commit;
        end;
        -- Drawn before a row is touched: a session that draws a higher token meanwhile, and gets the row, keeps it.
        set @token = next value for <<schema>>.[fencing_token];
        begin transaction;
        exec <<schema>>.[check_settings] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @consumer = @consumer;
        set @now = <<schema>>.[now]();
        -- A row locked by a consuming transaction belongs to its holder, even past its expiry.
        insert into @free (place, shard)
        select row_number() over (order by case when c.lease_holder = @holder then 0 else 1 end, a.place), a.shard
        from @asked as a
        inner join <<schema>>.[consumers] as c with (rowlock, readpast, readcommittedlock)
            on c.feed_id = <<feed_id>> and c.consumer = @consumer and c.shard = a.shard
        where c.fencing_token < @token and (c.lease_holder is null or c.lease_holder = @holder or c.lease_expires <= @now);
        update c
        set fencing_token = @token,
            lease_since = @now,
            lease_holder = @holder,
            lease_expires = <<schema>>.[later](@now, @seconds)
        from <<schema>>.[consumers] as c with (rowlock, updlock, readpast, readcommittedlock)
        inner join @free as f on f.shard = c.shard
        where c.feed_id = <<feed_id>> and c.consumer = @consumer and f.place <= isnull(@at_most, f.place)
            and c.fencing_token < @token and (c.lease_holder is null or c.lease_holder = @holder or c.lease_expires <= @now);
        delete from <<schema>>.[lease_waiters]
        where feed_id = <<feed_id>> and consumer = @consumer and (until <= @now or (waiter = @holder and exists (
            select 1 from <<schema>>.[consumers] as c with (rowlock, readpast, readcommittedlock)
            where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.lease_holder = @holder and c.lease_expires > @now
        )));
        update <<schema>>.[lease_waiters] set until = <<schema>>.[later](@now, @seconds)
        where feed_id = <<feed_id>> and consumer = @consumer and waiter = @holder;
        if @@rowcount = 0 and not exists (
            select 1 from <<schema>>.[consumers] as c with (rowlock, readpast, readcommittedlock)
            where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.lease_holder = @holder and c.lease_expires > @now
        )
            insert into <<schema>>.[lease_waiters] (feed_id, consumer, waiter, since, until)
            values (<<feed_id>>, @consumer, @holder, @now, <<schema>>.[later](@now, @seconds));
        commit;
        select
            c.consumer, c.shard, c.start_ulid, c.ulid, c.ahead, c.ack, c.resource_version, c.moved_at, c.moved_by,
            c.fencing_token, c.lease_holder, c.lease_expires, convert(bit, case when c.fencing_token = @token then 1 else 0 end) as is_granted,
            @now as asked_at
        from <<schema>>.[consumers] as c with (rowlock, readpast, readcommittedlock)
        inner join @asked as a on a.shard = c.shard
        where c.feed_id = <<feed_id>> and c.consumer = @consumer
        order by c.shard;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
