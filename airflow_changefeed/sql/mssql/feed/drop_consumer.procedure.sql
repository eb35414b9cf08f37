-- Forgets a consumer's rows, which frees what it held back from purging.
-- errors: 77135 the consumer is somebody else's
-- permission: readers
create procedure <<schema>>.[drop_consumer:<<name>>] (@consumer nvarchar(128))
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        exec <<schema>>.[check_owner:<<name>>] @consumer = @consumer;
        delete from <<schema>>.[consumers] where feed_id = <<feed_id>> and consumer = @consumer;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
