-- Recreates the objects of one captured table: the procedures that count and record its rows, its triggers, and its guard. Fills the
-- templates from the catalog. In the caller's transaction.
-- Locks: from the first trigger on, Sch-M on the captured table until the transaction ends. Everybody queues behind that, readers too.
-- @columns_only: 1 recreates only what depends on the columns, and alters existing procedures: the schema guard may do no more.
-- errors: 77140 its rows are too wide for delete_insert. 1222 transactions or queries hold the table; transient
-- permission: internal; needs the right to alter the table and to create procedures
create or alter procedure <<schema>>.[create_capture_objects] (
    @capture_id int,
    @table_no smallint,
    @columns_only bit = 0
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @name nvarchar(128), @object_id int, @feed_object int, @shard_type sysname, @sequence nvarchar(300), @shard nvarchar(max), @key_change varchar(15);
    declare @keep bit, @not_for_replication bit, @session_keys nvarchar(max), @trace_key nvarchar(128), @guard bit, @guard_name nvarchar(128), @session nvarchar(max) = N'';
    declare @has_insert bit, @has_update bit, @has_delete bit, @table_schema nvarchar(128), @table_name nvarchar(128), @first nvarchar(300);
    declare @place int, @object varchar(40), @type varchar(10), @body nvarchar(max), @sql nvarchar(max), @full nvarchar(600), @operation nvarchar(10), @last int, @message nvarchar(2048), @events nvarchar(300);
    create table #tokens (token varchar(30) collate database_default not null primary key, value nvarchar(max) collate database_default not null);
    declare @ready table (place int not null primary key, object varchar(40) not null, type varchar(10) not null, full_name nvarchar(600) not null, body nvarchar(max) not null);
    declare @keys table (place int not null primary key, name nvarchar(300) not null, definition nvarchar(max) not null);
    declare @columns table (
        place int not null primary key, name nvarchar(300) not null, stored nvarchar(300) not null, bytes nvarchar(300) not null,
        on_insert bit not null, on_update bit not null, on_delete bit not null,
        -- Recorded by the update trigger: as an update; for a new key recorded as inserted; for an old key recorded as deleted.
        is_paired bit not null, is_added bit not null, is_deleted bit not null);

    select
        @name = c.name, @object_id = t.object_id, @feed_object = f.object_id, @shard_type = f.shard_key_type,
        @sequence = isnull(f.sequence_name, N'<<schema_in_text>>.[sequence]'), @shard = t.shard, @key_change = c.key_change, @keep = c.keep_unchanged,
        @not_for_replication = c.not_for_replication, @session_keys = c.session_keys, @trace_key = c.trace_key, @guard = c.guard_table, @guard_name = t.guard_name,
        @has_insert = case when t.insert_columns is null then 0 else 1 end,
        @has_update = case when t.update_columns is null then 0 else 1 end,
        @has_delete = case when t.delete_columns is null then 0 else 1 end,
        @table_schema = t.table_schema, @table_name = t.table_name
    from <<schema>>.[captures] as c
    inner join <<schema>>.[feeds] as f on f.name = c.name
    inner join <<schema>>.[capture_tables] as t on t.capture_id = c.capture_id
    where c.capture_id = @capture_id and t.table_no = @table_no;
    insert into @keys (place, name, definition)
    select k.place, quotename(k.name), k.definition from <<schema>>.[key_columns](@object_id) as k;
    set @events = concat(quotename(object_schema_name(@feed_object)), N'.', quotename(object_name(@feed_object)));
    select @first = k.name from @keys as k where k.place = 1;
    insert into @columns (place, name, stored, bytes, on_insert, on_update, on_delete, is_paired, is_added, is_deleted)
    select c.place, quotename(s.name), quotename(c.stored_name), s.bytes, c.on_insert, c.on_update, c.on_delete,
        c.on_update,
        case when @has_insert = 1 then c.on_insert when @has_update = 1 then c.on_update else c.on_delete end,
        case when @has_delete = 1 then c.on_delete else c.on_update end
    from <<schema>>.[capture_columns] as c
    inner join <<schema>>.[captured_columns](@object_id) as s on s.place = c.place
    where c.capture_id = @capture_id and c.table_no = @table_no and (c.on_insert = 1 or c.on_update = 1 or c.on_delete = 1);
    if @key_change = 'delete_insert'
        update @columns set is_paired = 1 where is_added = 1 or is_deleted = 1;

    -- The server also could not sort them (error 8618), which would make the writers' first update fail.
    if @has_update = 1 and @key_change = 'delete_insert' and (
        select sum(2 * k.max_length) + count(*) / 4 from sys.columns as k
        inner join @columns as c on c.name = quotename(k.name) collate database_default
        where k.object_id = @object_id and c.is_paired = 1
            and type_name(k.system_type_id) not in (N'varchar', N'nvarchar', N'varbinary', N'xml', N'sql_variant')) > 7700
    begin
        set @message = concat(N'changefeed 77140: table "', @table_schema, N'.', @table_name, N'" cannot be captured: its fixed-length columns are so wide that ', N'an old and a new row do not fit into one row of the server; choose fewer columns for updates, or use @key_change = ''new_only''');
        throw 77140, @message, 1;
    end;

    -- Values are recorded as text, in a JSON object; unset ones are omitted.
    select @session = string_agg(convert(nvarchar(max), concat(
        N'    if session_context(N''', replace(j.value, N'''', N''''''), N''') is not null', nchar(10),
        N'        set @session = concat(@session, case when @session is null then N''{'' else N'','' end, N''"',
        replace(string_escape(j.value, 'json'), N'''', N''''''), N'":"'', string_escape(convert(nvarchar(4000), session_context(N''',
        replace(j.value, N'''', N''''''), N''')), ''json''), N''"'');', nchar(10))), N'') within group (order by convert(int, j.[key]))
    from openjson(@session_keys) as j;
    set @session = concat(
        case when @session is not null then concat(nchar(10), @session, N'    if @session is not null set @session = concat(@session, N''}'');', nchar(10)) end,
        case when @trace_key is not null then concat(N'    set @trace = left(convert(nvarchar(4000), session_context(N''', replace(@trace_key, N'''', N''''''), N''')), 512);') end);

    insert into #tokens (token, value)
    values
        ('schema', N'<<schema_in_text>>'),
        ('schema_in_text', N'<<schema_in_text_in_text>>'),
        ('name', replace(@name, N']', N']]')),
        -- For a comment of one line.
        ('name_shown', replace(replace(@name, nchar(10), N' '), nchar(13), N' ')),
        ('table_no', convert(nvarchar(10), @table_no)),
        ('object_id', convert(nvarchar(20), @object_id)),
        ('table', concat(quotename(@table_schema), N'.', quotename(@table_name))),
        ('trigger_schema', quotename(@table_schema)),
        ('events', @events),
        ('outbox', concat(N'<<schema_in_text>>.', quotename(concat(N'outbox:', @name)))),
        ('sequence', @sequence),
        ('shard_type', @shard_type),
        ('shard', @shard),
        ('is_one_shard', case when try_convert(bigint, @shard) is null then N'0' else N'1' end),
        ('constant_shard', case when try_convert(bigint, @shard) is null then N'null' else @shard end),
        ('session', @session),
        ('keep_unchanged', convert(nvarchar(1), @keep)),
        ('not_for_replication', case @not_for_replication when 1 then N' not for replication' else N'' end),
        ('is_paired', case @key_change when 'new_only' then N'1' else N'0' end),
        ('pair_join', case @key_change when 'new_only' then N'left' else N'full' end),
        ('first_key', isnull(@first, N'changefeed_shard'));
    insert into #tokens (token, value)
    select 'pair_op', case @key_change when 'new_only' then N'''u'''
        else concat(N'case when d.', @first, N' is null then ''i'' when i.', @first, N' is null then ''d'' else ''u'' end') end
    where @first is not null
    union all
    select 'calls', string_agg(convert(nvarchar(max), concat(
        N'    if @table_no = ', t.table_no, N' and @what in (''reset'', ''chunk'', ''ready'')', nchar(10),
        N'        exec <<schema_in_text>>.', quotename(concat(N'capture_snapshot.', t.table_no, N':', @name)),
        N' @what = @what, @rows = @chunk output, @statement = @statement output, @row = @row output, @is_last = @is_last output;', nchar(10),
        N'    else if @table_no = ', t.table_no, nchar(10),
        N'        exec <<schema_in_text>>.', quotename(concat(N'capture_rows.', t.table_no, N':', @name)), N' @how = @what, @rows = @rows output, @gained = @gained output;')), nchar(10)) within group (order by t.table_no)
    from <<schema>>.[capture_tables] as t where t.capture_id = @capture_id
    union all
    select 'row_order', concat(N'a.changefeed_shard', string_agg(convert(nvarchar(max), concat(N', i.', k.name)), N'') within group (order by k.place)) from @keys as k
    union all
    -- Without delete_insert, the new rows can be sorted before they are paired: old and new together may not fit into a row.
    select 'pair_order', case @key_change when 'new_only'
        then concat(N'a.changefeed_shard', string_agg(convert(nvarchar(max), concat(N', i.', k.name)), N'') within group (order by k.place))
        else concat(N'isnull(a.changefeed_shard, b.changefeed_shard)',
            string_agg(convert(nvarchar(max), concat(N', isnull(i.', k.name, N', d.', k.name, N')')), N'') within group (order by k.place)) end
    from @keys as k
    union all
    select 'same_key', isnull(string_agg(convert(nvarchar(max), concat(N'd.', k.name, N' = i.', k.name)), N' and ') within group (order by k.place), N'1 = 0') from @keys as k
    union all
    -- The columns for the shard expression. No star anywhere: it would include columns that triggers cannot see, and omit sparse ones.
    select 'new_keys', isnull(string_agg(convert(nvarchar(max), N'i.' + k.name), N', ') within group (order by k.place), N'1 as changefeed_nothing') from @keys as k
    union all
    select 'old_keys', isnull(string_agg(convert(nvarchar(max), N'd.' + k.name), N', ') within group (order by k.place), N'1 as changefeed_nothing') from @keys as k
    union all
    select 'keys', isnull(string_agg(convert(nvarchar(max), k.name), N', ') within group (order by k.place), N'') from @keys as k
    union all
    select 'key_definitions', isnull(string_agg(convert(nvarchar(max), k.definition), N', ') within group (order by k.place), N'') from @keys as k
    union all
    select 'insert_stored', isnull(string_agg(convert(nvarchar(max), concat(N', ', c.stored)), N'') within group (order by c.place), N'') from @columns as c where c.on_insert = 1
    union all
    select 'insert_values', isnull(string_agg(convert(nvarchar(max), concat(N', i.', c.name)), N'') within group (order by c.place), N'') from @columns as c where c.on_insert = 1
    union all
    select 'snapshot_stored', isnull(string_agg(convert(nvarchar(max), concat(N', ', c.stored)), N'') within group (order by c.place), N'') from @columns as c where c.is_added = 1
    union all
    select 'snapshot_values', isnull(string_agg(convert(nvarchar(max), concat(N', i.', c.name)), N'') within group (order by c.place), N'') from @columns as c where c.is_added = 1
    union all
    select 'delete_stored', isnull(string_agg(convert(nvarchar(max), concat(N', ', c.stored)), N'') within group (order by c.place), N'') from @columns as c where c.on_delete = 1
    union all
    select 'delete_values', isnull(string_agg(convert(nvarchar(max), concat(N', i.', c.name)), N'') within group (order by c.place), N'') from @columns as c where c.on_delete = 1
    union all
    select 'update_stored', isnull(string_agg(convert(nvarchar(max), concat(N', ', c.stored)), N'') within group (order by c.place), N'') from @columns as c where c.is_paired = 1
    union all
    -- A column not recorded for the operation is null.
    select 'image_values', isnull(string_agg(convert(nvarchar(max), concat(
        N', case',
        case when c.on_update = 1 or c.is_added = 1 then concat(
            N' when v.changefeed_image = 1',
            case when @key_change = 'new_only' or c.on_update = c.is_added then N'' else concat(N' and d.', @first, case c.on_update when 1 then N' is not null' else N' is null' end) end,
            N' then i.', c.name) end,
        case when c.on_update = 1 or c.is_deleted = 1 then concat(
            N' when v.changefeed_image = 0',
            case when @key_change = 'new_only' or c.on_update = c.is_deleted then N'' else concat(N' and i.', @first, case c.on_update when 1 then N' is not null' else N' is null' end) end,
            N' then d.', c.name) end,
        N' end')), N'') within group (order by c.place), N'')
    from @columns as c where c.is_paired = 1
    union all
    select 'new_bytes', isnull(string_agg(convert(nvarchar(max), replace(c.bytes, N'~', N'i.' + c.name)), N', ') within group (order by c.place), N'1') from @columns as c where c.on_update = 1
    union all
    select 'old_bytes', isnull(string_agg(convert(nvarchar(max), replace(c.bytes, N'~', N'd.' + c.name)), N', ') within group (order by c.place), N'1') from @columns as c where c.on_update = 1;

    exec <<schema>>.[fill_chunks] @capture_id = @capture_id, @table_no = @table_no, @events = @events;
    select top (1) @place = t.place from <<schema>>.[capture_templates]() as t order by t.place;
    while @place is not null
    begin
        select @object = t.object, @type = t.type, @body = t.body from <<schema>>.[capture_templates]() as t where t.place = @place;
        set @full = concat(case @type when 'trigger' then quotename(@table_schema) else N'<<schema_in_text>>' end,
            N'.', quotename(concat(@object, case when @object <> 'capture_table' then concat(N'.', @table_no) end, N':', @name)));
        if @type = 'fragment' and (@has_update = 1 or @object <> 'update_pairs')
        begin
            -- A part of what follows. Without a primary key, or inserts, no key can come back.
            if @object = 'merged_rows' and (@first is null or @has_insert = 0) set @body = N'';
            exec <<schema>>.[fill_template] @body = @body output;
            insert into #tokens (token, value) values (@object, @body);
        end
        else if (@type = 'procedure' and (@columns_only = 0 or @object = 'capture_snapshot'))
            or (@object = 'capture_insert' and @has_insert = 1)
            or (@object = 'capture_update' and @has_update = 1)
            or (@object = 'capture_delete' and @has_delete = 1)
            or (@type = 'table' and @columns_only = 0 and @guard = 1 and @first is not null and object_id(@full) is null and not exists (
                -- Rowversion columns, for which the server generates a value in each table.
                select 1 from <<schema>>.[key_columns](@object_id) as k where k.type_name = N'timestamp'))
        begin
            exec <<schema>>.[fill_template] @body = @body output;
            if @columns_only = 1 and @type = 'procedure' set @body = replace(@body, N'create or alter procedure ', N'alter procedure ');
            insert into @ready (place, object, type, full_name, body) values (@place, @object, @type, @full, @body);
        end;
        set @last = @place;
        set @place = null;
        select top (1) @place = t.place from <<schema>>.[capture_templates]() as t where t.place > @last order by t.place;
    end;
    -- When all texts are ready: the first trigger locks the table. It comes behind the procedures.
    select top (1) @place = r.place, @object = r.object, @type = r.type, @full = r.full_name, @body = r.body from @ready as r order by r.place;
    while @place is not null
    begin
        -- Dropped first, so that a disabled trigger is enabled again.
        if @type = 'trigger' and object_id(@full) is not null
        begin
            set @sql = concat(N'drop trigger ', @full);
            exec sys.sp_executesql @sql;
        end;
        exec sys.sp_executesql @body;
        if @type = 'table'
            update <<schema>>.[capture_tables]
            set guard_name = concat(N'guard.', @table_no, N':', @name)
            where capture_id = @capture_id and table_no = @table_no;
        -- Changes by other triggers would be recorded before their cause. Only one trigger can be first; it may be another capture's if the
        -- table has only captures' triggers (check_captured).
        set @operation = case @object when 'capture_insert' then N'INSERT' when 'capture_update' then N'UPDATE' else N'DELETE' end;
        if @type = 'trigger' and not exists (
            select 1 from sys.trigger_events as e
            inner join sys.triggers as t on t.object_id = e.object_id
            where t.parent_id = @object_id and e.is_first = 1 and e.type_desc = @operation)
            exec sys.sp_settriggerorder @triggername = @full, @order = 'First', @stmttype = @operation;
        set @last = @place;
        set @place = null;
        select top (1) @place = r.place, @object = r.object, @type = r.type, @full = r.full_name, @body = r.body from @ready as r where r.place > @last order by r.place;
    end;
    if @columns_only = 0
    begin
        -- Triggers and row counts in the catalog are visible only with a right on the table; sealing needs them.
        set @sql = concat(N'grant view definition on ', quotename(@table_schema), N'.', quotename(@table_name),
            N' to ', quotename(concat(N'<<schema_text>>.operators:', @name)));
        exec sys.sp_executesql @sql;
        update <<schema>>.[captures] set version = <<schema>>.[version]() where capture_id = @capture_id;
    end;
    update <<schema>>.[capture_tables]
    set trigger_count = convert(int, @has_insert) + convert(int, @has_update) + convert(int, @has_delete),
        trigger_modified = (
            select string_agg(convert(nvarchar(max), t.stamp), N',') from <<schema>>.[capture_triggers] as t
            where t.capture_id = @capture_id and t.table_no = @table_no)
    where capture_id = @capture_id and table_no = @table_no;
end
