-- Goes on to record the rows that captured tables already have, as enable_capture and resolve_capture:T have begun: short transactions, of as
-- many rows as take 50 ms. No writer waits longer; a transaction that would wait so long for a writer gives way, and is tried again. What
-- was recorded stays recorded. Two that run at the same time take turns. Call outside any transaction.
-- @seconds: ends after about so many; null when all is recorded.
-- result: recorded (rows), unfinished (tables).
-- errors: 77100 in a transaction. 77141 the table is gone. 77156 events since it began were purged
-- permission: operators
create or alter procedure <<schema>>.[record_rows:<<name>>] (@seconds float = null)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    -- If this and a writer deadlock, the writer wins.
    set deadlock_priority low;
    set lock_timeout 50;
    set rowcount 0;
    declare @no smallint, @table nvarchar(257), @token nvarchar(64), @mark nvarchar(100), @statement bigint, @row int, @is_last bit, @is_mine bit;
    declare @size int = 100, @rows int, @took int, @recorded bigint = 0, @message nvarchar(2048);
    declare @begun datetime2(3) = sysutcdatetime(), @started datetime2(3);
    if @@trancount > 0
        throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (record_rows)', 0;
    while @seconds is null or datediff(millisecond, @begun, sysutcdatetime()) < 1000 * @seconds
    begin
        select @table = null, @no = null, @mark = null;
        select top (1) @table = s.table_name, @token = s.token
        from <<schema>>.[snapshots] as s
        where s.feed_id = <<feed_id>> and s.path = N''
        order by s.table_name;
        if @table is null break;
        select @no = t.table_no
        from <<schema>>.[capture_tables] as t
        inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
        where c.name = N'<<name_text>>' and concat(t.table_schema, N'.', t.table_name) = @table and object_name(t.object_id) is not null;
        if @no is null
        begin
            set @message = concat(N'changefeed 77141: feed "<<name_text>>": table "', @table, N'", whose rows are to be recorded, is missing. Restore it, or give up: airflow-changefeed snapshot give-up --feed "<<name_text>>" --table "', @table, N'" --conn-id ...');
            throw 77141, @message, 1;
        end;
        begin try
            select @started = sysutcdatetime(), @is_mine = 0;
            begin transaction;
            -- Locked first: two take turns.
            update <<schema>>.[snapshots] set expires_at = <<schema>>.[later](<<schema>>.[now](), 345600)
            where feed_id = <<feed_id>> and table_name = @table and token = @token;
            if @@rowcount = 1
            begin
                set @is_mine = 1;
                select @mark = m.mark from <<schema>>.[snapshot_marks] as m where m.feed_id = <<feed_id>> and m.table_name = @table and m.token = @token;
                delete from <<schema>>.[snapshot_marks] where feed_id = <<feed_id>> and table_name = @table and token = @token;
                if @mark = N'end'
                begin
                    exec <<schema>>.[capture_table:<<name>>] @table_no = @no, @what = 'ready';
                    delete from <<schema>>.[snapshots] where feed_id = <<feed_id>> and table_name = @table and token = @token;
                end
                else
                begin
                    -- The mark is the event of the last row recorded.
                    select @statement = left(@mark, charindex(N'/', @mark) - 1), @row = substring(@mark, charindex(N'/', @mark) + 1, 20), @rows = @size;
                    exec <<schema>>.[capture_table:<<name>>] @table_no = @no, @what = 'chunk', @rows = @rows output, @statement = @statement output, @row = @row output, @is_last = @is_last output;
                    if @rows is null
                    begin
                        set @message = concat(N'changefeed 77156: feed "<<name_text>>": the rows of table "', @table, N'" cannot be recorded further, because events since the recording began were purged. Give up the recording, then record the rows again: airflow-changefeed snapshot give-up --feed "<<name_text>>" --table "', @table, N'" --conn-id ...');
                        throw 77156, @message, 1;
                    end;
                    -- The end comes in a transaction of its own, so that in each shard it is behind the rows of every other.
                    insert into <<schema>>.[snapshot_marks] (feed_id, table_name, token, mark)
                    values (<<feed_id>>, @table, @token, case when @is_last = 1 then N'end' else concat(@statement, N'/', @row) end);
                    set @recorded = @recorded + @rows;
                end;
            end;
            commit;
            set @took = datediff(millisecond, @started, sysutcdatetime());
            -- At most 2,000: with the locks of two indexes, far from the 5,000 for which the server locks the table.
            set @size = case
                when 50 * @size / (@took + 1) > 2 * @size then case when @size < 1000 then 2 * @size else 2000 end
                when 50 * @size / (@took + 1) > 2000 then 2000
                when 50 * @size / (@took + 1) < 1 then 1
                else 50 * @size / (@took + 1) end;
        end try
        begin catch
            if @@trancount > 0 rollback;
            if error_number() not in (1205, 1222) throw;
            if @is_mine = 1 set @size = (@size + 1) / 2;
        end catch;
    end;
    select @recorded as recorded, (
        select count(*) from <<schema>>.[snapshots] as s where s.feed_id = <<feed_id>> and s.path = N'') as unfinished;
end
