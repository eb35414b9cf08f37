-- Releases leases that are still the newest, and stops waiting.
-- @tokens: JSON object, the fencing token of each shard.
-- errors: 77135 the consumer belongs to another user
-- permission: readers
create procedure <<schema>>.[leave:<<name>>] (
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
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end;
        declare @given table (shard nvarchar(36) not null primary key, fencing_token bigint not null);
        insert into @given (shard, fencing_token) select j.[key], convert(bigint, j.value) from openjson(@tokens) as j;
        exec <<schema>>.[check_owner] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @consumer = @consumer;
        if @is_own = 1 begin transaction;
        -- As check_settings, but leaving a dropped consumer is not an error.
        update <<schema>>.[consumer_settings] set resource_version = resource_version where feed_id = <<feed_id>> and consumer = @consumer;
        update c
        set lease_holder = null, lease_expires = null, lease_since = null
        from <<schema>>.[consumers] as c
        inner join @given as g on g.shard = c.shard
        where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.fencing_token = g.fencing_token and c.lease_holder = @holder;
        delete from <<schema>>.[lease_waiters] where feed_id = <<feed_id>> and consumer = @consumer and waiter = @holder;
        if @is_own = 1 commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
