-- Adds the current columns of a captured table to the capture and to the capture's table. Columns with recorded values stay in that table.
-- Lets the locks of that table escalate if they may.
-- Locks: the capture's table for schema modification, if a column is added or the option differs; waits for its readers and writers.
-- @without: JSON array of columns to stop capturing.
-- errors: 77143 a column's new type is incompatible with the recorded values. 1205,
--     1222 transactions or queries hold the capture's table; transient
-- permission: internal
create or alter procedure <<schema>>.[set_capture_columns] (
    @capture_id int,
    @table_no smallint,
    @without nvarchar(max) = N'[]'
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @object_id int, @insert nvarchar(max), @update nvarchar(max), @delete nvarchar(max), @events nvarchar(300), @table nvarchar(300), @message nvarchar(2048);
    declare @place int, @column nvarchar(128), @stored nvarchar(128), @definition nvarchar(300), @present nvarchar(300), @sql nvarchar(max);
    declare @wanted table (
        place int not null primary key, name nvarchar(128) not null, stored_name nvarchar(128) not null, definition nvarchar(300) not null,
        key_place int null, on_insert bit not null, on_update bit not null, on_delete bit not null, is_done bit not null);
    declare @dropped table (name nvarchar(128) not null);
    declare @stored_columns table (name nvarchar(128) not null primary key, definition nvarchar(300) not null);
    select
        @object_id = t.object_id, @insert = t.insert_columns, @update = t.update_columns, @delete = t.delete_columns,
        @table = concat(t.table_schema, N'.', t.table_name)
    from <<schema>>.[capture_tables] as t where t.capture_id = @capture_id and t.table_no = @table_no;
    select @events = concat(quotename(object_schema_name(f.object_id)), N'.', quotename(object_name(f.object_id)))
    from <<schema>>.[feeds] as f
    inner join <<schema>>.[captures] as c on c.name = f.name
    where c.capture_id = @capture_id;
    insert into @dropped (name) select j.value from openjson(@without) as j;
    insert into @wanted (place, name, stored_name, definition, key_place, on_insert, on_update, on_delete, is_done)
    select c.place, c.name, c.name, c.definition, c.key_place,
        case when @insert = N'[]' or c.name collate database_default in (select j.value collate database_default from openjson(isnull(@insert, N'[]')) as j) then 1 else 0 end,
        case when @update = N'[]' or c.name collate database_default in (select j.value collate database_default from openjson(isnull(@update, N'[]')) as j) then 1 else 0 end,
        case when @delete = N'[]' or c.name collate database_default in (select j.value collate database_default from openjson(isnull(@delete, N'[]')) as j) then 1 else 0 end,
        0
    from <<schema>>.[captured_columns](@object_id) as c
    where c.problem is null and not exists (select 1 from @dropped as d where d.name = c.name collate database_default);
    -- Readers know the key even if it is not recorded.
    delete from @wanted where on_insert = 0 and on_update = 0 and on_delete = 0 and key_place is null;
    update @wanted set is_done = 1 where on_insert = 0 and on_update = 0 and on_delete = 0;
    -- If two tables disagree about a column's type, each gets its own.
    update w
    set stored_name = left(concat(@table, N'.', w.name), 128)
    from @wanted as w
    where exists (
        select 1 from <<schema>>.[capture_columns] as o
        where o.capture_id = @capture_id and o.table_no <> @table_no and o.stored_name = w.name and o.definition <> w.definition);
    insert into @stored_columns (name, definition)
    select e.name, e.definition from <<schema>>.[captured_columns](object_id(@events)) as e;
    update w
    set is_done = 1
    from @wanted as w
    where exists (select 1 from @stored_columns as e where e.name = w.stored_name and e.definition = w.definition);
    select top (1) @place = w.place, @column = w.name, @stored = w.stored_name, @definition = w.definition, @present = e.definition
    from @wanted as w left join @stored_columns as e on e.name = w.stored_name
    where w.is_done = 0 order by w.place;
    while @place is not null
    begin
        set @sql = concat(N'alter table ', @events, case when @present is null then N' add ' else N' alter column ' end, quotename(@stored), N' ', @definition, N' null');
        begin try
            exec sys.sp_executesql @sql;
        end try
        begin catch
            if error_number() in (1205, 1222) throw;
            set @message = concat(N'changefeed 77143: column "', @column, N'" of table "', @table, N'" is ', @definition, N', which the capture''s table cannot store',
                case when @present is not null then concat(N' for what was recorded as ', @present) end, N': ', left(error_message(), 500), N'. Export and purge the feed first, or disable the capture and enable one with another name');
            throw 77143, @message, 1;
        end catch;
        update @wanted set is_done = 1 where place = @place;
        set @place = null;
        select top (1) @place = w.place, @column = w.name, @stored = w.stored_name, @definition = w.definition, @present = e.definition
        from @wanted as w left join @stored_columns as e on e.name = w.stored_name
        where w.is_done = 0 order by w.place;
    end;
    -- A statement of many rows would hold a lock for each image, where the captured table's own locks have escalated to one. But tables share
    -- the capture's table, and the writer of one must not stop those of another; without row versions, nor a drain or export (ADR 0007).
    set @sql = case when (select count(*) from <<schema>>.[capture_tables] as t where t.capture_id = @capture_id) = 1
        and exists (select 1 from sys.tables as t where t.object_id = @object_id and t.lock_escalation_desc = N'TABLE' collate database_default)
        and exists (select 1 from sys.databases as d where d.name = db_name() and d.is_read_committed_snapshot_on = 1) then N'TABLE' else N'DISABLE' end;
    if exists (select 1 from sys.tables as t where t.object_id = object_id(@events) and t.lock_escalation_desc <> @sql collate database_default)
    begin
        set @sql = concat(N'alter table ', @events, N' set (lock_escalation = ', @sql, N')');
        exec sys.sp_executesql @sql;
    end;
    delete from <<schema>>.[capture_columns] where capture_id = @capture_id and table_no = @table_no;
    insert into <<schema>>.[capture_columns] (
        capture_id, table_no, place, name, stored_name, definition, key_place, on_insert, on_update, on_delete)
    select @capture_id, @table_no, w.place, w.name, w.stored_name, w.definition, w.key_place, w.on_insert, w.on_update, w.on_delete
    from @wanted as w;
end
