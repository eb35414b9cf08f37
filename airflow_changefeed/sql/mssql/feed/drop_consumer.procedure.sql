-- Forgets all of a consumer: settings, cursors, leases, dead letters and log, which frees what it held back from purging.
-- errors: 77135 the consumer is somebody else's
-- permission: readers
create procedure <<schema>>.[drop_consumer:<<name>>] (@consumer nvarchar(128))
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end;
        exec <<schema>>.[check_owner:<<name>>] @consumer = @consumer;
        if @is_own = 1 begin transaction;
        -- In the order in which others lock them.
        delete from <<schema>>.[consumer_settings] where feed_id = <<feed_id>> and consumer = @consumer;
        delete from <<schema>>.[consumers] where feed_id = <<feed_id>> and consumer = @consumer;
        delete from <<schema>>.[dead_letters] where feed_id = <<feed_id>> and consumer = @consumer;
        delete from <<schema>>.[invocations] where feed_id = <<feed_id>> and consumer = @consumer;
        delete from <<schema>>.[lease_waiters] where feed_id = <<feed_id>> and consumer = @consumer;
        if @is_own = 1 commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
