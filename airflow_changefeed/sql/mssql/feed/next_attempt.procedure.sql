-- Draws an attempt token: higher than every one drawn for the feed before, and than @above.
-- result: attempt.
-- permission: readers
create procedure <<schema>>.[next_attempt:<<name>>] (@above bigint = 0)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @attempt bigint;
        begin transaction;
        select @attempt = 1 + case when f.attempt > @above then f.attempt else @above end
        from <<schema>>.[feeds] as f with (updlock, rowlock)
        where f.feed_id = <<feed_id>>;
        update <<schema>>.[feeds] set attempt = @attempt where feed_id = <<feed_id>>;
        commit;
        select @attempt as attempt;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
