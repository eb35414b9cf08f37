-- Forgets a snapshot and its marks; it no longer holds back purges.
-- result: ended (0 if it is not there).
-- errors: as find_feed. 77157 the caller is not an operator of the feed
-- permission: operators of the feed
create or alter procedure <<schema>>.[end_snapshot] (@feed nvarchar(128), @table nvarchar(257), @token nvarchar(64))
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        declare @feed_id int, @ended int;
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output, @is_operator = 1;
        begin transaction;
        delete from <<schema>>.[snapshots] where feed_id = @feed_id and table_name = @table and token = @token;
        set @ended = @@rowcount;
        delete from <<schema>>.[snapshot_marks] where feed_id = @feed_id and table_name = @table and token = @token;
        commit;
        select convert(bit, @ended) as ended;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
