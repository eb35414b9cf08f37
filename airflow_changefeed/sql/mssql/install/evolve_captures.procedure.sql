-- Lets captures that evolve record the columns that a statement has just added to a table, in its transaction, so that no value of them is
-- missed: those that are null in every row. A column that may have values (not null, computed, with a default, rowversion), that no capture
-- could record, or that the capture's table holds with another type already, is left to refresh_capture.
-- Locks: the captured table is locked by the statement. Takes the row of the capture, then the capture's table exclusively: waits for what
-- reads and writes it, in the session's lock_timeout. The statement ends if it and a writer deadlock.
-- @table_schema, @table_name, @added, @statement: as check_captured_tables.
-- errors: 1205, 1222 the table was not changed; transient
-- permission: internal; runs as the schema guard, with what grant_guard has granted
create or alter procedure <<schema>>.[evolve_captures] (
    @table_schema nvarchar(128),
    @table_name nvarchar(128),
    @added nvarchar(max),
    @statement nvarchar(max)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    -- If this and a writer deadlock, the writer wins.
    set deadlock_priority low;
    declare @id int, @no smallint, @without nvarchar(max), @feed_id int;
    declare @columns table (capture_id int not null, table_no smallint not null, name nvarchar(128) not null);
    insert into @columns (capture_id, table_no, name)
    select t.capture_id, t.table_no, s.name
    from <<schema>>.[capture_tables] as t
    inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
    inner join <<schema>>.[feeds] as f on f.name = c.name
    inner join sys.columns as s on s.object_id = t.object_id
    inner join <<schema>>.[captured_columns](object_id(concat(quotename(@table_schema), N'.', quotename(@table_name)))) as d
        on d.name = s.name collate database_default
    where c.is_enabled = 1 and c.is_changing = 0 and c.guard_schema = 1 and c.on_ddl = 'evolve'
        and t.object_id = object_id(concat(quotename(@table_schema), N'.', quotename(@table_name)))
        and N'[]' in (t.insert_columns, t.update_columns, t.delete_columns)
        and s.name collate database_default in (select j.value collate database_default from openjson(@added) as j)
        and s.is_nullable = 1 and s.is_computed = 0 and s.default_object_id = 0 and type_name(s.system_type_id) <> N'timestamp'
        and d.problem is null
        and not exists (
            select 1 from <<schema>>.[captured_columns](f.object_id) as e
            where e.name = d.name collate database_default and e.definition <> d.definition collate database_default);
    -- One that was refreshed or disabled meanwhile is no longer in this state. All of them first: the guard is called again by what follows.
    update c
    set is_changing = 1
    from <<schema>>.[captures] as c
    where c.is_enabled = 1 and c.on_ddl = 'evolve' and c.capture_id in (select k.capture_id from @columns as k);
    delete from @columns where capture_id not in (select c.capture_id from <<schema>>.[captures] as c where c.is_changing = 1);
    select top (1) @id = k.capture_id, @no = k.table_no from @columns as k order by k.capture_id;
    while @id is not null
    begin
        exec <<schema>>.[note_capture_gaps] @capture_id = @id;
        set @without = null;
        select @without = string_agg(convert(nvarchar(max), concat(N'"', string_escape(s.name, 'json'), N'"')), N',')
        from <<schema>>.[capture_tables] as t
        inner join sys.columns as s on s.object_id = t.object_id
        where t.capture_id = @id and t.table_no = @no
            and not exists (select 1 from @columns as k where k.capture_id = @id and k.name = s.name collate database_default)
            and not exists (
                select 1 from <<schema>>.[capture_columns] as k
                where k.capture_id = @id and k.table_no = @no and k.place = s.column_id);
        set @without = concat(N'[', @without, N']');
        exec <<schema>>.[change_capture_columns]
            @capture_id = @id, @table_no = @no, @without = @without, @statement = @statement, @is_guard = 1;
        delete from @columns where capture_id = @id;
        update <<schema>>.[captures] set is_changing = 0 where capture_id = @id;
        select @feed_id = f.feed_id
        from <<schema>>.[feeds] as f inner join <<schema>>.[captures] as c on c.name = f.name
        where c.capture_id = @id;
        exec <<schema>>.[bump_version] @feed_id = @feed_id;
        set @id = null;
        select top (1) @id = k.capture_id, @no = k.table_no from @columns as k order by k.capture_id;
    end;
end
