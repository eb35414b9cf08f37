-- Recreates the triggers of captures created by another version. Waits for open transactions of each table, and blocks its writers
-- meanwhile; the captured columns stay unchanged.
-- errors: 77101 a set-up is running; transient, triggers already recreated stay
-- permission: as for enable_capture
create or alter procedure <<schema>>.[upgrade_captures]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    -- If this and a writer deadlock, the writer wins.
    set deadlock_priority low;
    begin try
        declare @found table (capture_id int not null, table_no smallint not null, is_present bit not null, primary key (capture_id, table_no));
        declare @id int, @no smallint;
        insert into @found (capture_id, table_no, is_present)
        select t.capture_id, t.table_no, case when object_name(t.object_id) is null then 0 else 1 end
        from <<schema>>.[capture_tables] as t
        inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
        where c.is_enabled = 1 and c.version <> <<schema>>.[version]();
        -- A missing table becomes a gap at the next seal.
        delete from @found where is_present = 0;
        select top (1) @id = f.capture_id, @no = f.table_no from @found as f order by f.capture_id, f.table_no;
        while @id is not null
        begin
            begin transaction;
            exec <<schema>>.[lock_setup];
            -- The previous holder of the lock may have disabled or dropped it, or recreated its triggers.
            if exists (select 1 from <<schema>>.[captures] as c where c.capture_id = @id and c.is_enabled = 1 and c.version <> <<schema>>.[version]())
            begin
                exec <<schema>>.[note_capture_gaps] @capture_id = @id;
                update <<schema>>.[captures] set is_changing = 1 where capture_id = @id;
                exec <<schema>>.[create_capture_objects] @capture_id = @id, @table_no = @no;
                -- Not yet of this version while another of its tables is pending: repeating continues.
                update <<schema>>.[captures]
                set is_changing = 0,
                    version = case when exists (select 1 from @found as f where f.capture_id = @id and f.table_no > @no) then '' else version end
                where capture_id = @id;
            end;
            commit;
            delete from @found where capture_id = @id and table_no = @no;
            set @id = null;
            select top (1) @id = f.capture_id, @no = f.table_no from @found as f order by f.capture_id, f.table_no;
        end;
        if exists (select 1 from sys.triggers as t where t.parent_class = 0 and t.name = N'<<schema_text>>_captures')
        begin
            begin transaction;
            exec <<schema>>.[lock_setup];
            exec <<schema>>.[guard_schema];
            commit;
        end;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
