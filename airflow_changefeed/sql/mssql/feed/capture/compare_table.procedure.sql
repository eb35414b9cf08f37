-- Compares the rows of a captured table with its recorded changes, blocking others only briefly. Call outside any transaction.
-- @is_full: 0 accepts the server's row count; 1 counts the rows.
-- @rows: of the table; null if it could not be compared because it was being changed all the time. @expected: rows according to the
--     recorded changes; null if unknown.
-- First compare the server's row count with the recorded changes without a lock, including open transactions: a change is recorded when its
-- statement ends, so open transactions alone make no difference. If the two differ, a statement is running or a change was missed. Then
-- lock the table against writers while the two numbers are read; if a writer is open, the lock request ends after 50 ms, so that sessions
-- queued behind it wait no longer. Row versions need no lock: one statement sees table and records as committed at one moment. But it reads
-- the whole table, so it comes third: if the lock was not granted, or the numbers differed under it.
-- permission: internal
create or alter procedure <<schema>>.[compare_table:<<name>>] (
    @table_no smallint,
    @is_full bit,
    @rows bigint output,
    @expected bigint output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @base bigint, @gained bigint, @again bigint, @before bigint, @after bigint, @how varchar(10), @round int = 0;
    select @rows = null, @expected = null;
    select @base = t.base_rows
    from <<schema>>.[capture_tables] as t
    inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
    where c.name = N'<<name_text>>' and t.table_no = @table_no;
    if @base is null return;
    select @how = case
        when d.is_read_committed_snapshot_on = 1 then 'committed'
        when d.snapshot_isolation_state = 1 then 'versions' end
    -- By name, because its id in sys.databases differs on Azure SQL Database.
    from sys.databases as d where d.name = db_name();
    set lock_timeout 50;
    while @round < 10
    begin
        set @round = @round + 1;
        exec <<schema>>.[capture_unordered:<<name>>] @table_no = @table_no, @is_dirty = 1, @rows = @gained output;
        exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = 'catalog', @rows = @before output;
        set @expected = @base + @gained;
        if @is_full = 0 and @before = @expected
        begin
            set @rows = @before;
            return;
        end;
        if @how is not null and (@is_full = 1 or @round > 3)
        begin
            exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = @how, @rows = @rows output, @gained = @gained output;
            set @expected = @base + @gained;
            return;
        end;
        if @is_full = 1
        begin
            -- Correct if nothing changed meanwhile; locking the table for the whole count would block its writers.
            exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = 'dirty', @rows = @rows output;
            exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = 'catalog', @rows = @after output;
            exec <<schema>>.[capture_unordered:<<name>>] @table_no = @table_no, @is_dirty = 1, @rows = @again output;
            if @before = @after and @gained = @again return;
        end
        else
        begin try
            begin transaction;
            exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = 'locked', @rows = @rows output;
            exec <<schema>>.[capture_unordered:<<name>>] @table_no = @table_no, @is_dirty = 0, @rows = @gained output;
            commit;
            set @expected = @base + @gained;
            if @rows = @expected or @how is null return;
            set @round = 3;
        end try
        begin catch
            if @@trancount > 0 rollback;
            if error_number() <> 1222 throw;
        end catch;
        set @rows = null;
    end;
end
