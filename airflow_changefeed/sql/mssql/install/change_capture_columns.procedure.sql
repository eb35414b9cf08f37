-- Captures the current columns of a captured table and recreates its triggers. If the captured columns, their types or the key differ from
-- before, records that, in order, in each shard that may have events of the table, with the columns whose values in older rows no event has:
-- retyped, renamed, recorded again, or added with values. In the caller's transaction, which has set is_changing.
-- @without: JSON array of columns to leave out. @statement: that changed the table; null if unknown. @is_guard: 1 is the schema guard, in
--     the transaction that changed the table and so has locked it; it changes only what depends on columns.
-- errors: as set_capture_columns and create_capture_objects. 1222 an open transaction has changed the table; transient
-- permission: internal
create or alter procedure <<schema>>.[change_capture_columns] (
    @capture_id int,
    @table_no smallint,
    @without nvarchar(max) = N'[]',
    @statement nvarchar(max) = null,
    @is_guard bit = 0
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @name nvarchar(128), @recorder nvarchar(300), @sql nvarchar(max), @ddl nvarchar(max);
    declare @before nvarchar(max), @after nvarchar(max), @key_before nvarchar(max), @key_after nvarchar(max);
    declare @rows bigint, @recorded nvarchar(max), @upto int, @unrecorded nvarchar(max), @object_id int;
    declare @kept table (place int not null, stored_name nvarchar(128) not null, definition nvarchar(300) not null);
    declare @known table (name nvarchar(128) not null);
    create table #ddl_shards (shard nvarchar(36) collate database_default not null primary key);
    select @name = c.name from <<schema>>.[captures] as c where c.capture_id = @capture_id;
    set @recorder = concat(N'<<schema_in_text>>.', quotename(concat(N'capture_ddl.', @table_no, N':', @name)));
    -- The table before anything else: what is recorded from here on has the new columns.
    if @is_guard = 0
    begin
        set @sql = concat(N'<<schema_in_text>>.', quotename(concat(N'capture_rows.', @table_no, N':', @name)));
        set @sql = concat(N'exec ', @sql, N' @how = ''locked'', @rows = @rows output; exec ', @sql, N' @how = ''any'', @rows = @rows output');
        exec sys.sp_executesql @sql, N'@rows bigint output', @rows = @rows output;
    end;
    set @sql = concat(N'exec ', @recorder, N' @what = ''shards''');
    exec sys.sp_executesql @sql;
    select @before = string_agg(convert(nvarchar(max), concat(
        N'{"name":"', string_escape(k.name, 'json'), N'","type":"', string_escape(k.definition, 'json'), N'"}')), N',') within group (order by k.place)
    from <<schema>>.[capture_columns] as k
    where k.capture_id = @capture_id and k.table_no = @table_no and (k.on_insert = 1 or k.on_update = 1 or k.on_delete = 1);
    select @key_before = string_agg(convert(nvarchar(max), string_escape(k.name, 'json')), N'","') within group (order by k.key_place)
    from <<schema>>.[capture_columns] as k
    where k.capture_id = @capture_id and k.table_no = @table_no and k.key_place is not null;
    insert into @kept (place, stored_name, definition)
    select k.place, k.stored_name, k.definition
    from <<schema>>.[capture_columns] as k
    where k.capture_id = @capture_id and k.table_no = @table_no and (k.on_insert = 1 or k.on_update = 1 or k.on_delete = 1);
    select @object_id = t.object_id, @recorded = t.recorded_columns, @upto = t.columns_upto
    from <<schema>>.[capture_tables] as t
    where t.capture_id = @capture_id and t.table_no = @table_no;
    insert into @known (name)
    select k.stored_name from @kept as k
    union
    select j.value collate database_default from openjson(@recorded) as j;
    exec <<schema>>.[set_capture_columns] @capture_id = @capture_id, @table_no = @table_no, @without = @without;
    exec <<schema>>.[create_capture_objects] @capture_id = @capture_id, @table_no = @table_no, @columns_only = @is_guard;
    select @after = string_agg(convert(nvarchar(max), concat(
        N'{"name":"', string_escape(k.name, 'json'), N'","type":"', string_escape(k.definition, 'json'), N'"}')), N',') within group (order by k.place)
    from <<schema>>.[capture_columns] as k
    where k.capture_id = @capture_id and k.table_no = @table_no and (k.on_insert = 1 or k.on_update = 1 or k.on_delete = 1);
    select @key_after = string_agg(convert(nvarchar(max), string_escape(k.name, 'json')), N'","') within group (order by k.key_place)
    from <<schema>>.[capture_columns] as k
    where k.capture_id = @capture_id and k.table_no = @table_no and k.key_place is not null;
    -- A column keeps its place for life: one that was dropped and added has a new one, one that was renamed has not.
    if isnull(@rows, 1) <> 0
        select @unrecorded = string_agg(convert(nvarchar(max), concat(N'"', string_escape(k.stored_name, 'json'), N'"')), N',') within group (order by k.place)
        from <<schema>>.[capture_columns] as k
        inner join sys.columns as s on s.object_id = @object_id and s.column_id = k.place
        where k.capture_id = @capture_id and k.table_no = @table_no and (k.on_insert = 1 or k.on_update = 1 or k.on_delete = 1)
            and not exists (
                select 1 from @kept as o
                where o.place = k.place and o.definition = k.definition
                    and convert(varbinary(256), o.stored_name) = convert(varbinary(256), k.stored_name))
            and (k.place <= @upto or k.stored_name in (select n.name from @known as n)
                or s.is_nullable = 0 or s.is_computed = 1 or s.default_object_id <> 0 or type_name(s.system_type_id) = N'timestamp');
    -- By another key, nobody knows which of the rows that are there have been recorded: that stays without an end.
    if convert(varbinary(max), isnull(@key_before, N'')) <> convert(varbinary(max), isnull(@key_after, N'')) or exists (
        select 1 from <<schema>>.[capture_columns] as k
        where k.capture_id = @capture_id and k.table_no = @table_no and k.key_place is not null and (k.on_insert = 1 or k.on_update = 1 or k.on_delete = 1)
            and not exists (
                select 1 from @kept as o where o.place = k.place and o.definition = k.definition and o.stored_name = k.stored_name))
        delete s
        from <<schema>>.[snapshots] as s
        inner join <<schema>>.[feeds] as f on f.feed_id = s.feed_id
        inner join <<schema>>.[captures] as c on c.name = f.name
        inner join <<schema>>.[capture_tables] as t on t.capture_id = c.capture_id
        where c.capture_id = @capture_id and t.table_no = @table_no and s.path = N'' and s.table_name = concat(t.table_schema, N'.', t.table_name);
    update <<schema>>.[capture_tables]
    set recorded_columns = (
            select concat(N'[', string_agg(convert(nvarchar(max), concat(N'"', string_escape(n.name, 'json'), N'"')), N','), N']') from @known as n),
        columns_upto = (select max(s.column_id) from sys.columns as s where s.object_id = @object_id),
        unrecorded_at = case when @unrecorded is null then unrecorded_at else <<schema>>.[now]() end
    where capture_id = @capture_id and table_no = @table_no;
    -- Compared by bytes: the database may ignore case.
    if @unrecorded is null
        and convert(varbinary(max), concat(@before, N'/', @key_before)) = convert(varbinary(max), concat(@after, N'/', @key_after)) return;
    set @ddl = concat(
        N'{"statement":', isnull(N'"' + string_escape(@statement, 'json') + N'"', N'null'),
        N',"before":[', @before, N'],"after":[', @after, N'],"by":"', string_escape(original_login(), 'json'), N'","unrecorded":[', @unrecorded, N']}');
    set @sql = concat(N'exec ', @recorder, N' @what = ''record'', @ddl = @ddl');
    exec sys.sp_executesql @sql, N'@ddl nvarchar(max)', @ddl = @ddl;
    update <<schema>>.[captures] set has_ddl = 1 where capture_id = @capture_id;
end
