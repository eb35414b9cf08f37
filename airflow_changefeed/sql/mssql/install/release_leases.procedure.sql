-- Releases leases, and stops waiting. A token that is no longer the newest, or not the holder's, is ignored.
-- @tokens: JSON object, the fencing token of each shard.
-- errors: as find_feed. 77135 the consumer belongs to another user
-- permission: readers of the feed
create or alter procedure <<schema>>.[release_leases] (
    @feed nvarchar(128),
    @consumer nvarchar(128),
    @tokens nvarchar(max),
    @holder nvarchar(256)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end, @feed_id int;
        declare @given table (shard nvarchar(36) not null primary key, fencing_token bigint not null);
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        insert into @given (shard, fencing_token) select lower(j.[key]), convert(bigint, j.value) from openjson(@tokens) as j;
        exec <<schema>>.[check_owner] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer;
        if @is_own = 1 begin transaction;
        -- As check_settings, but releasing leases of a dropped consumer is not an error.
        update <<schema>>.[consumer_settings] with (updlock, rowlock) set resource_version = resource_version where feed_id = @feed_id and consumer = @consumer;
        -- Row by row: a scan would wait for rows that other holders have locked.
        update c
        set lease_holder = null, lease_expires = null, lease_since = null
        from @given as g
        inner loop join <<schema>>.[consumers] as c with (rowlock, forceseek)
            on c.feed_id = @feed_id and c.consumer = @consumer and c.shard = g.shard
        where c.fencing_token = g.fencing_token and c.lease_holder = @holder;
        delete from <<schema>>.[lease_waiters] where feed_id = @feed_id and consumer = @consumer and waiter = @holder;
        if @is_own = 1 commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
