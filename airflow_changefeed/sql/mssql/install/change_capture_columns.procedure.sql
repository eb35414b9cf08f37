-- Captures the current columns of a captured table and recreates its triggers. If the captured columns, their types or the key differ from
-- before, records that, in order, in each shard that may have events of the table. In the caller's transaction, which has set is_changing.
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
    declare @name nvarchar(128), @recorder nvarchar(300), @sql nvarchar(max), @ddl nvarchar(max), @is_listed bit = 0;
    declare @before nvarchar(max), @after nvarchar(max), @key_before nvarchar(max), @key_after nvarchar(max);
    create table #ddl_shards (shard nvarchar(36) not null primary key);
    select @name = c.name from <<schema>>.[captures] as c where c.capture_id = @capture_id;
    set @recorder = concat(N'<<schema_in_text>>.', quotename(concat(N'capture_ddl.', @table_no, N':', @name)));
    -- The table before anything else: what is recorded from here on has the new columns.
    if @is_guard = 0
    begin
        set @sql = concat(N'declare @rows bigint; exec <<schema_in_text>>.', quotename(concat(N'capture_rows.', @table_no, N':', @name)),
            N' @how = ''locked'', @rows = @rows output');
        exec sys.sp_executesql @sql;
    end;
    -- An older version has not created it.
    if object_id(@recorder) is not null
    begin
        set @sql = concat(N'exec ', @recorder, N' @what = ''shards''');
        exec sys.sp_executesql @sql;
        set @is_listed = 1;
    end;
    select @before = string_agg(convert(nvarchar(max), concat(
        N'{"name":"', string_escape(k.name, 'json'), N'","type":"', string_escape(k.definition, 'json'), N'"}')), N',') within group (order by k.place)
    from <<schema>>.[capture_columns] as k
    where k.capture_id = @capture_id and k.table_no = @table_no and (k.on_insert = 1 or k.on_update = 1 or k.on_delete = 1);
    select @key_before = string_agg(convert(nvarchar(max), string_escape(k.name, 'json')), N'","') within group (order by k.key_place)
    from <<schema>>.[capture_columns] as k
    where k.capture_id = @capture_id and k.table_no = @table_no and k.key_place is not null;
    exec <<schema>>.[set_capture_columns] @capture_id = @capture_id, @table_no = @table_no, @without = @without;
    exec <<schema>>.[create_capture_objects] @capture_id = @capture_id, @table_no = @table_no, @columns_only = @is_guard;
    select @after = string_agg(convert(nvarchar(max), concat(
        N'{"name":"', string_escape(k.name, 'json'), N'","type":"', string_escape(k.definition, 'json'), N'"}')), N',') within group (order by k.place)
    from <<schema>>.[capture_columns] as k
    where k.capture_id = @capture_id and k.table_no = @table_no and (k.on_insert = 1 or k.on_update = 1 or k.on_delete = 1);
    select @key_after = string_agg(convert(nvarchar(max), string_escape(k.name, 'json')), N'","') within group (order by k.key_place)
    from <<schema>>.[capture_columns] as k
    where k.capture_id = @capture_id and k.table_no = @table_no and k.key_place is not null;
    -- Compared by bytes: the database may ignore case.
    if convert(varbinary(max), concat(@before, N'/', @key_before)) = convert(varbinary(max), concat(@after, N'/', @key_after)) return;
    if @is_listed = 0
    begin
        set @sql = concat(N'exec ', @recorder, N' @what = ''shards''');
        exec sys.sp_executesql @sql;
    end;
    set @ddl = concat(
        N'{"statement":', isnull(N'"' + string_escape(@statement, 'json') + N'"', N'null'),
        N',"before":[', @before, N'],"after":[', @after, N'],"by":"', string_escape(original_login(), 'json'), N'"}');
    set @sql = concat(N'exec ', @recorder, N' @what = ''record'', @ddl = @ddl');
    exec sys.sp_executesql @sql, N'@ddl nvarchar(max)', @ddl = @ddl;
    update <<schema>>.[captures] set has_ddl = 1 where capture_id = @capture_id;
end
