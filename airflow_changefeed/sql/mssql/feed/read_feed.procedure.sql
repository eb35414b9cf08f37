-- Reads one page of a shard after a cursor into the caller's #read, ordering new events if the feed has run out.
-- @cursor: the last ULID already consumed, exclusive; 0x00 is the start of the feed. @pagesize: rows, 1 to 100000.
-- @lock_timeout: milliseconds, -1 waits forever.
-- result: none. #read (ulid binary(16) not null, <key columns>) is emptied and filled; create it first, for example from type:read:T.
--     No row means the head of the shard; a short page does not.
-- errors: 77100 in a transaction. 77101 lock timeout; transient. 77104 events after the cursor were purged. 77105 the cursor is beyond
--     the shard's high-water time. 77107 #read is missing or lacks a column. 77108 @pagesize or @cursor
-- permission: readers
create or alter procedure <<schema>>.[read_feed:<<name>>] (
    @shard_id <<shard_type>>,
    @cursor binary(16),
    @pagesize int = 1000,
    @lock_timeout int = 60000
)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    -- Before the first read: under the caller's read uncommitted, rows that roll back could be read (R5).
    set transaction isolation level read committed;
    -- The caller's rowcount limit would end loops early.
    set rowcount 0;
    begin try
        declare @next binary(16), @rows bigint, @ordered bigint, @page int, @round int = 0;
        if @@trancount > 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (read_feed)', 0;
        if @pagesize is null or @pagesize not between 1 and 100000
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @pagesize must be 1 to 100000 rows', 1;
        if @cursor is null
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @cursor is missing; pass 0x00 for the start of the feed', 1;
        if object_id(N'tempdb..#read') is null
            throw 77107, N'changefeed 77107: feed "<<name_text>>": create the table #read first: ulid binary(16) not null, and the key columns of the event table', 1;
        delete from #read;
        begin try
            exec sys.sp_executesql N'declare @rows int; select @rows = count(*) from (select r.ulid<<read_columns_in_text>> from #read as r) as s;';
        end try
        begin catch
            throw 77107, N'changefeed 77107: feed "<<name_text>>": #read lacks a column: it needs ulid<<read_names_in_text>>', 1;
        end catch;
        exec <<schema>>.[check_cursor:<<name>>] @shard_id = @shard_id, @cursor = @cursor;

        -- Read a page; if the feed has run out, drain the outbox and read again. The last round reads again because another reader may have
        -- emptied the outbox since the feed was read.
        while @round < 3
        begin
            -- Only rows below the committed state, read by an earlier statement: while a reader waits at a higher row, lower ones of the
            -- same transaction may appear (R9).
            set @next = 0x00000000000000000000000000000000;
            select @next = s.ulid from <<schema>>.[state:<<name>>] as s where s.shard_id = @shard_id;

            insert into #read (ulid<<keys_after_comma>>)
            select top (@pagesize) f.ulid<<feed_keys_after_comma>>
            from <<schema>>.[feed:<<name>>] as f
            where f.shard_id = @shard_id and f.ulid > @cursor and f.ulid < @next
            order by f.ulid;
            set @rows = @@rowcount;
            if @rows > 0 or @round = 2 break;

            set @page = case when @pagesize > 1000 then @pagesize else 1000 end;
            exec <<schema>>.[drain_shard:<<name>>]
                @shard_id = @shard_id, @limit = @page, @pagesize = @page, @lock_timeout = @lock_timeout, @rows = @ordered output;
            set @round = case when @ordered = 0 then 2 else 1 end;
        end;
        -- Checked again, because a purge may have deleted the first rows of this page while it was read (R12).
        exec <<schema>>.[check_cursor:<<name>>] @shard_id = @shard_id, @cursor = @cursor;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
