-- Renews leases whose token is still the newest, even if expired and not yet taken.
-- @tokens: JSON object, the fencing token of each shard. @seconds: from now.
-- result: waiting (number of others waiting without any shard), has_retries (whether the consumer has dead letters to retry); then
--     shard, of those still held.
-- errors: 77108 @seconds. 77135 the consumer belongs to another user. 77151 no such consumer
-- permission: readers
create procedure <<schema>>.[renew_leases:<<name>>] (
    @consumer nvarchar(128),
    @tokens nvarchar(max),
    @holder nvarchar(256),
    @seconds float
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end, @now datetime2(3);
        declare @given table (shard nvarchar(36) not null primary key, fencing_token bigint not null);
        if @seconds is null or @seconds <= 0 or @seconds > 31622400
            throw 77108, N'changefeed 77108: feed "<<name_text>>": a lease must last more than 0 and at most 31622400 seconds', 1;
        insert into @given (shard, fencing_token) select j.[key], convert(bigint, j.value) from openjson(@tokens) as j;
        if @is_own = 1 begin transaction;
        exec <<schema>>.[check_settings] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @consumer = @consumer;
        set @now = <<schema>>.[now]();
        update c
        set lease_expires = <<schema>>.[later](@now, @seconds)
        from <<schema>>.[consumers] as c
        inner join @given as g on g.shard = c.shard
        where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.fencing_token = g.fencing_token and c.lease_holder = @holder;
        if @is_own = 1 commit;
        select
            (
                select count(*) from <<schema>>.[lease_waiters] as w
                where w.feed_id = <<feed_id>> and w.consumer = @consumer and w.until > @now and w.waiter <> @holder
            ) as waiting,
            convert(bit, case when exists (
                select 1 from <<schema>>.[dead_letters] as d
                where d.feed_id = <<feed_id>> and d.consumer = @consumer and d.state = 'retry'
            ) then 1 else 0 end) as has_retries;
        select c.shard
        from <<schema>>.[consumers] as c
        inner join @given as g on g.shard = c.shard
        where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.fencing_token = g.fencing_token and c.lease_holder = @holder
        order by c.shard;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
