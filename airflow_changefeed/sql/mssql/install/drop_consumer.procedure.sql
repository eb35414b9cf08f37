-- Drops a consumer with its settings, cursors, history, leases, dead letters and log. It no longer holds back purges.
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
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end, @message nvarchar(2048), @version bigint, @present nvarchar(max), @last bigint, @feed_id int;
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        exec <<schema>>.[check_owner] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer;
        if @is_own = 1 begin transaction;
        if @resource_version is not null
        begin
            -- Locked by an update that changes nothing, then read: this reads what the last holder of the lock committed. Babelfish ignores hints, and
            -- the update costs SQL Server little.
            update <<schema>>.[consumer_settings] set resource_version = resource_version where feed_id = @feed_id and consumer = @consumer;
            select @version = s.resource_version, @present = concat(N'settings ', left(s.settings, 500)) from <<schema>>.[consumer_settings] as s
            where s.feed_id = @feed_id and s.consumer = @consumer;
            if @version is null
            begin
                update <<schema>>.[consumers] set resource_version = resource_version where feed_id = @feed_id and consumer = @consumer;
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
        update <<schema>>.[consumer_settings] set resource_version = resource_version where feed_id = @feed_id and consumer = @consumer;
        update <<schema>>.[consumers] set resource_version = resource_version where feed_id = @feed_id and consumer = @consumer;
        select @last = max(v.resource_version) from (
            select s.resource_version from <<schema>>.[consumer_settings] as s where s.feed_id = @feed_id and s.consumer = @consumer
            union all
            select c.resource_version from <<schema>>.[consumers] as c where c.feed_id = @feed_id and c.consumer = @consumer
        ) as v;
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
        if @is_own = 1 commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
