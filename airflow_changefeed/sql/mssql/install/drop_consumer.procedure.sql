-- Drops a consumer with its settings, cursors, history, leases, dead letters, log and output check. It no longer holds back purges. What it
-- has acknowledged is remembered (acknowledged): a purge does not keep these events for an export that began after them.
-- @resource_version: expected version of the settings; for an export, which has none, the sum of its rows' versions. Null skips the check.
-- errors: as find_feed. 77135 the consumer belongs to another user. 77155 it is at another @resource_version; nothing was dropped
-- permission: readers of the feed
create or alter procedure <<schema>>.[drop_consumer] (
    @feed nvarchar(128),
    @consumer nvarchar(128),
    @resource_version bigint = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end, @message nvarchar(2048), @version bigint, @present nvarchar(max), @last bigint, @feed_id int, @place int = 1;
        declare @kept table (shard nvarchar(36) not null, place int not null, after_ulid binary(16) not null, upto_ulid binary(16) not null, primary key (shard, place));
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        exec <<schema>>.[check_owner] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer;
        if @is_own = 1 begin transaction;
        -- Two who drop at once would both join their ranges to the same ones.
        exec <<schema>>.[lock_consumers] @feed_id = @feed_id, @feed = @feed, @lock_timeout = 60000;
        if @resource_version is not null
        begin
            -- Locked by an update that changes nothing, then read: this reads what the last holder of the lock committed. The hints keep the row until
            -- the transaction ends where the write alone would not (ADR 0005); Babelfish ignores them.
            update <<schema>>.[consumer_settings] with (updlock, rowlock) set resource_version = resource_version where feed_id = @feed_id and consumer = @consumer;
            select @version = s.resource_version, @present = concat(N'settings ', left(s.settings, 500)) from <<schema>>.[consumer_settings] as s
            where s.feed_id = @feed_id and s.consumer = @consumer;
            if @version is null
            begin
                update <<schema>>.[consumers] with (updlock, rowlock) set resource_version = resource_version where feed_id = @feed_id and consumer = @consumer;
                select
                    @version = sum(c.resource_version),
                    @present = left(string_agg(convert(nvarchar(max), concat(N'shard ', c.shard, N' at ', <<schema>>.[ulid_text](c.ulid))), N', ') within group (order by c.shard), 1000)
                from <<schema>>.[consumers] as c
                where c.feed_id = @feed_id and c.consumer = @consumer;
            end;
            set @version = isnull(@version, 0);
            if @version <> @resource_version
            begin
                set @message = concat(
                    N'changefeed 77155: consumer "', @consumer, N'" of feed "', @feed, N'" is at resource version ', @version, N' (', isnull(@present, N'it does not exist'),
                    N'), not ', @resource_version, N': nothing was changed.',
                    case when @resource_version > @version then N' A version above the current one comes from another database, or from before this database was restored.' else N'' end,
                    N' Read it again, then decide');
                throw 77155, @message, 1;
            end;
        end;
        -- In the order in which other procedures lock them.
        update <<schema>>.[consumer_settings] with (updlock, rowlock) set resource_version = resource_version where feed_id = @feed_id and consumer = @consumer;
        update <<schema>>.[consumers] with (updlock, rowlock) set resource_version = resource_version where feed_id = @feed_id and consumer = @consumer;
        select @last = max(v.resource_version) from (
            select s.resource_version from <<schema>>.[consumer_settings] as s where s.feed_id = @feed_id and s.consumer = @consumer
            union all
            select c.resource_version from <<schema>>.[consumers] as c where c.feed_id = @feed_id and c.consumer = @consumer
        ) as v;
        insert into @kept (shard, place, after_ulid, upto_ulid)
        select r.shard, row_number() over (partition by r.shard order by r.after_ulid), r.after_ulid, r.upto_ulid
        from (
            select c.shard, c.start_ulid as after_ulid, c.ack as upto_ulid
            from <<schema>>.[consumers] as c
            where c.feed_id = @feed_id and c.consumer = @consumer and c.ack > c.start_ulid
            union all
            select c.shard, convert(binary(16), j.after, 2), convert(binary(16), j.upto, 2)
            from <<schema>>.[consumers] as c
            cross apply openjson(c.before) with (after varchar(32), upto varchar(32)) as j
            where c.feed_id = @feed_id and c.consumer = @consumer
        ) as r;
        -- One range of each shard after the other: it takes in those that it touches.
        while exists (select 1 from @kept as k where k.place = @place)
        begin
            update k
            set after_ulid = a.after_ulid
            from @kept as k
            inner join <<schema>>.[acknowledged] as a on a.feed_id = @feed_id and a.shard = k.shard
            where k.place = @place and a.after_ulid < k.after_ulid and a.upto_ulid >= k.after_ulid;
            update k
            set upto_ulid = a.upto_ulid
            from @kept as k
            inner join <<schema>>.[acknowledged] as a on a.feed_id = @feed_id and a.shard = k.shard
            where k.place = @place and a.after_ulid <= k.upto_ulid and a.upto_ulid > k.upto_ulid;
            delete a
            from <<schema>>.[acknowledged] as a
            inner join @kept as k on k.shard = a.shard
            where a.feed_id = @feed_id and k.place = @place and a.after_ulid >= k.after_ulid and a.after_ulid <= k.upto_ulid;
            insert into <<schema>>.[acknowledged] (feed_id, shard, after_ulid, upto_ulid)
            select @feed_id, k.shard, k.after_ulid, k.upto_ulid from @kept as k where k.place = @place;
            set @place = @place + 1;
        end;
        delete from <<schema>>.[consumer_settings] where feed_id = @feed_id and consumer = @consumer;
        delete from <<schema>>.[consumers] where feed_id = @feed_id and consumer = @consumer;
        if @last is not null
        begin
            delete from <<schema>>.[dropped_consumers] where feed = @feed and consumer = @consumer;
            insert into <<schema>>.[dropped_consumers] (feed, consumer, resource_version) values (@feed, @consumer, @last);
        end;
        delete from <<schema>>.[dead_letters] where feed_id = @feed_id and consumer = @consumer;
        delete from <<schema>>.[invocations] where feed_id = @feed_id and consumer = @consumer;
        delete from <<schema>>.[cursor_history] where feed_id = @feed_id and consumer = @consumer;
        delete from <<schema>>.[lease_waiters] where feed_id = @feed_id and consumer = @consumer;
        delete from <<schema>>.[output_checks] where feed_id = @feed_id and consumer = @consumer;
        if @is_own = 1 commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
