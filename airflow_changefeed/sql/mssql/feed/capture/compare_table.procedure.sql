-- Compares the rows of a captured table with what was recorded of it, holding nobody up for longer than a moment. Outside of any
-- transaction.
-- @is_full: 0 is content with the server's own number of rows; 1 counts them.
-- @rows: of the table; null where changes of it were under way all the time, and it could not be compared. @expected: rows
--     that it should have by what was recorded; null where that is not known.
-- First, open transactions and all, the server's number against what was recorded, without a lock: whoever has changed rows has recorded
-- them, too, as soon as the statement has ended, so that open transactions alone make no difference. Where the two differ a
-- statement is under way, or something passed unseen. So the table is locked against writers for as long as the two numbers take
-- to read; while a writer is open the lock is given up after 50 ms, so that those who queue behind it wait no longer than that.
-- Row versions tell, too, and without a lock: one statement sees table and records as they were committed at one moment. But it
-- reads the whole table, so it comes third: where the lock was not got, or the numbers differed behind it.
-- permission: internal
create procedure <<schema>>.[compare_table:<<name>>] (
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
    -- By its name: its number in sys.databases is another one on Azure SQL Database.
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
            -- Right where nothing changed meanwhile: a table under a lock for as long as its rows are counted would stop its writers.
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
