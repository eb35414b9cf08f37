-- Remembers that a snapshot of a captured table has begun, unless one of the table has, expired or not; returns the one that counts. The
-- feed is not purged from its begin on until it ends or expires; a purge at the same time may still be ahead of it, which reading those
-- events then reports (77104).
-- @begin: UTC; the feed is sealed until then. @by: who, as free text. @seconds: until it expires without progress.
-- @where: of the part that it reads; empty for the whole table.
-- result: as list_snapshots, of the one that counts.
-- errors: as find_feed. 77106 the feed was dropped meanwhile. 77157 the caller is not an operator of the feed
-- permission: operators of the feed
create or alter procedure <<schema>>.[begin_snapshot] (
    @feed nvarchar(128),
    @table nvarchar(257),
    @token nvarchar(64),
    @path nvarchar(4000),
    @begin datetime2(3),
    @by nvarchar(256),
    @seconds float,
    @where nvarchar(4000) = N''
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @feed_id int, @message nvarchar(2048);
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output, @is_operator = 1;
        begin transaction;
        -- Locked by an update that changes nothing: two that begin follow each other, and a dropped feed gets no snapshot.
        update <<schema>>.[feeds] with (updlock, rowlock) set attempt = attempt where feed_id = @feed_id;
        if @@rowcount = 0
        begin
            set @message = concat(N'changefeed 77106: feed "', @feed, N'" no longer exists in this database');
            throw 77106, @message, 1;
        end;
        if not exists (select 1 from <<schema>>.[snapshots] as s where s.feed_id = @feed_id and s.table_name = @table)
            insert into <<schema>>.[snapshots] (feed_id, table_name, token, path, begin_time, begun_by, expires_at, where_text)
            values (@feed_id, @table, @token, @path, @begin, @by, <<schema>>.[later](<<schema>>.[now](), @seconds), @where);
        select @feed as feed, s.table_name, s.token, s.path, s.begin_time, s.begun_by, s.expires_at, s.where_text
        from <<schema>>.[snapshots] as s
        where s.feed_id = @feed_id and s.table_name = @table;
        commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
