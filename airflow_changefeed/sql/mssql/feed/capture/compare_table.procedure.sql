-- Compares the rows of a captured table with its recorded changes, and blocks others only briefly. Call outside any transaction.
-- @is_full: 0 is content with the server's own number of rows; 1 counts them.
-- @rows: of the table; null if statements changed the table during each count. @expected: according to the recorded
--     changes; null if this capture does not record what would tell it. @counted: rows less what was recorded, if they were counted.
--     @catalog: the server's number less what was recorded, if it was read under a lock before any count.
-- The server's own number is approximate, and may be off for good after a crash, so it is compared with itself only: it must have changed
-- by what was recorded since the capture began (base_catalog). First without a lock, including open transactions: a change is recorded when
-- its statement ends, so open transactions alone make no difference. If the two differ, a statement is running, a change was missed, or the
-- server's number is off. Then lock the table against writers while the two numbers are read; if a writer is open, the lock request ends
-- after 50 ms, so that sessions queued behind it wait no longer. If they still differ, or the lock was not granted, the rows are counted:
-- only a count that agrees with the base (base_rows, a count too) excuses the server's number, whose base is then set again; a difference
-- never does, as that would hide a truncate. With row versions one statement sees table and records as committed at one moment, without a
-- lock. Without, a count is good if nothing was recorded meanwhile, and a difference only if it is found twice, while the server's number says
-- that no statement has changed rows without having recorded them: it is what was read under the lock, or what is expected.
-- The first count is the base, if the server's number has changed by what was recorded until then, or is the same.
-- errors: 601, 1205, 1222, 3961 transient
-- permission: internal
create or alter procedure <<schema>>.[compare_table:<<name>>] (
    @table_no smallint,
    @is_full bit,
    @rows bigint output,
    @expected bigint output,
    @counted bigint = null output,
    @catalog bigint = null output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @id int, @base bigint, @base_catalog bigint, @gained bigint, @number bigint, @newest bigint, @how varchar(10), @left int, @counts int = 0;
    declare @gained_then bigint, @number_then bigint, @newest_then bigint, @last bigint, @is_agreed bit = 0;
    select @rows = null, @expected = null, @counted = null, @catalog = null;
    select @id = t.capture_id, @base = t.base_rows, @base_catalog = t.base_catalog
    from <<schema>>.[capture_tables] as t
    inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
    where c.name = N'<<name_text>>' and t.table_no = @table_no;
    if @base_catalog is null return;
    select @how = case
        when d.is_read_committed_snapshot_on = 1 then 'committed'
        when d.snapshot_isolation_state = 1 then 'versions' end
    -- By name, because its id in sys.databases differs on Azure SQL Database.
    from sys.databases as d where d.name = db_name();
    set lock_timeout 50;
    -- Looks at the server's number before the rows are counted.
    set @left = case when @how is null then 10 when @is_full = 1 then 0 else 3 end;
    while @is_agreed = 0
    begin
        if @left > 0
        begin
            set @left = @left - 1;
            exec <<schema>>.[capture_unordered:<<name>>] @table_no = @table_no, @is_dirty = 1, @rows = @gained output;
            exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = 'catalog', @rows = @number output;
            set @expected = @base_catalog + @gained;
            if @number = @expected and @is_full = 1 and @counted is null set @left = 0;
            else if @number = @expected set @is_agreed = 1;
            else
            begin try
                begin transaction;
                exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = 'locked', @rows = @number output;
                exec <<schema>>.[capture_unordered:<<name>>] @table_no = @table_no, @is_dirty = 0, @rows = @gained output;
                commit;
                set @expected = @base_catalog + @gained;
                if @number = @expected and (@is_full = 0 or @counted is not null) set @is_agreed = 1;
                else if @counted is null select @catalog = @number - @gained, @left = 0;
                else
                begin
                    set @expected = @base_catalog + @rows - @counted;
                    return;
                end;
            end try
            begin catch
                if @@trancount > 0 rollback;
                if error_number() <> 1222 throw;
            end catch;
        end
        else if @counted is not null
        begin
            set @rows = null;
            return;
        end
        else
        begin
            if @how is not null
            begin
                exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = @how, @rows = @rows output, @gained = @gained output;
                set @counted = @rows - @gained;
            end;
            while @counted is null and @counts < 3
            begin
                set @counts = @counts + 1;
                exec <<schema>>.[capture_unordered:<<name>>] @table_no = @table_no, @is_dirty = 1, @rows = @gained output, @newest = @newest output;
                exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = 'catalog', @rows = @number output;
                -- Locking the table for the whole count would block its writers.
                exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = 'dirty', @rows = @rows output;
                exec <<schema>>.[capture_table:<<name>>] @table_no = @table_no, @what = 'catalog', @rows = @number_then output;
                exec <<schema>>.[capture_unordered:<<name>>] @table_no = @table_no, @is_dirty = 1, @rows = @gained_then output, @newest = @newest_then output;
                if @number = @number_then and @gained = @gained_then and @newest = @newest_then
                begin
                    -- A statement that has changed rows and not yet recorded them is in the server's number, too.
                    if @rows - @gained = isnull(@base, @base_catalog) or (@rows - @gained = @last and @number - @gained = isnull(@catalog, @base_catalog))
                        set @counted = @rows - @gained;
                    set @last = @rows - @gained;
                end;
            end;
            set @expected = isnull(@base, @base_catalog) + @gained;
            if @counted is null
            begin
                set @rows = null;
                return;
            end;
            if @counted = isnull(@base, @base_catalog) set @is_agreed = 1;
            else if @base is not null return;
            else select @left = 10, @catalog = null;
        end;
    end;
    set @rows = case when @counted is null then @number else @rows end;
    set @expected = @rows;
    update <<schema>>.[capture_tables]
    set base_rows = @counted, base_catalog = isnull(@catalog, base_catalog)
    where capture_id = @id and table_no = @table_no and base_catalog = @base_catalog and isnull(base_rows, @counted) = @counted
        and (base_rows is null or @catalog is not null);
end
