-- Deletes older entries of a consumer's log, in batches, each in its own transaction.
-- @before: UTC, exclusive; compared with the end of an attempt.
-- result: rows.
-- errors: as find_feed. 77135 the consumer belongs to another user
-- permission: readers of the feed
create or alter procedure <<schema>>.[purge_invocations] (
    @feed nvarchar(128),
    @consumer nvarchar(128),
    @before datetime2(3)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        declare @rows bigint = 0, @removed bigint = 1, @feed_id int;
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        exec <<schema>>.[check_owner] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer;
        while @removed > 0
        begin
            delete top (5000) from <<schema>>.[invocations] where feed_id = @feed_id and consumer = @consumer and ended_at < @before;
            set @removed = @@rowcount;
            set @rows = @rows + @removed;
        end;
        select @rows as rows;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
