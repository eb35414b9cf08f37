-- Counts the rows of each captured table, for comparison with its recorded changes; blocks no writer. Takes as long as reading the tables.
-- Of a table whose rows were not counted yet, that is the base of later comparisons. Call outside any transaction.
-- result: table_schema, table_name, rows, expected; for each table whose inserts and deletes are captured. rows: null if the table
--     could not be compared because it was being changed all the time.
-- errors: 77100 in a transaction
-- permission: operators
create or alter procedure <<schema>>.[compare_capture:<<name>>]
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    begin try
        declare @found table (
            table_no smallint not null primary key, table_schema nvarchar(128) not null, table_name nvarchar(128) not null,
            is_done bit not null, rows bigint null, expected bigint null);
        declare @no smallint, @rows bigint, @expected bigint;
        if @@trancount > 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (compare_capture)', 0;
        insert into @found (table_no, table_schema, table_name, is_done)
        select t.table_no, t.table_schema, t.table_name, 0
        from <<schema>>.[capture_tables] as t
        inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
        where c.name = N'<<name_text>>' and c.is_enabled = 1 and t.base_catalog is not null and object_name(t.object_id) is not null;
        select top (1) @no = f.table_no from @found as f order by f.table_no;
        while @no is not null
        begin
            exec <<schema>>.[compare_table:<<name>>] @table_no = @no, @is_full = 1, @rows = @rows output, @expected = @expected output;
            update @found set is_done = 1, rows = @rows, expected = @expected where table_no = @no;
            set @no = null;
            select top (1) @no = f.table_no from @found as f where f.is_done = 0 order by f.table_no;
        end;
        select f.table_schema, f.table_name, f.rows, f.expected from @found as f order by f.table_no;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
