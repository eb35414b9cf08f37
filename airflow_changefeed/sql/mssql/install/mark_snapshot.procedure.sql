-- Writes a mark of a snapshot, by the session that was open while its rows were read, and renews the snapshot. The log is flushed first:
-- what was committed before the rows were read is then as durable as the mark.
-- @mark: not used before. @seconds: until the snapshot expires without progress.
-- errors: as find_feed. 77156 the snapshot was given up, or another one has begun. 77157 the caller is not an operator of the feed
-- permission: operators of the feed
create or alter procedure <<schema>>.[mark_snapshot] (
    @feed nvarchar(128),
    @table nvarchar(257),
    @token nvarchar(64),
    @mark nvarchar(100),
    @seconds float
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @feed_id int, @message nvarchar(2048);
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output, @is_operator = 1;
        exec <<schema>>.[flush_log];
        begin transaction;
        update <<schema>>.[snapshots] set expires_at = <<schema>>.[later](<<schema>>.[now](), @seconds)
        where feed_id = @feed_id and table_name = @table and token = @token;
        if @@rowcount = 0
        begin
            set @message = concat(N'changefeed 77156: snapshot ', @token, N' of table "', @table, N'" of feed "', @feed,
                N'" was given up, or another snapshot has begun; its rows cannot be used. Begin a new snapshot');
            throw 77156, @message, 1;
        end;
        insert into <<schema>>.[snapshot_marks] (feed_id, table_name, token, mark) values (@feed_id, @table, @token, @mark);
        commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
