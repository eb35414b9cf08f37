-- Draws an attempt token: higher than every earlier one of the feed, and than @above.
-- result: attempt.
-- errors: as find_feed
-- permission: readers of the feed
create or alter procedure <<schema>>.[next_attempt] (@feed nvarchar(128), @above bigint = 0)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @attempt bigint, @feed_id int;
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        begin transaction;
        -- Updated before it is read, so that no other session reads it meanwhile.
        update <<schema>>.[feeds]
        set attempt = 1 + case when attempt > @above then attempt else @above end
        where feed_id = @feed_id;
        select @attempt = f.attempt from <<schema>>.[feeds] as f where f.feed_id = @feed_id;
        commit;
        select @attempt as attempt;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
