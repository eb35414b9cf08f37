-- Records the changes of a table from now on, in the transaction that makes them, as events of a feed of the capture's name.
-- Called again for another table with the same @capture, it adds that table. Called again for the same table, it does nothing, or recreates
-- missing triggers, or enables a disabled capture; changes made meanwhile are a gap, which has to be resolved.
-- The table is locked (Sch-M) for its triggers only, when all else is prepared, and its rows are counted afterwards without a lock
-- (compare_table:T), outside a caller's transaction only. If that is interrupted, or statements change the table meanwhile and there are no
-- row versions, its rows stay uncounted; calling again, or compare_capture:T, counts them.
-- @table: with its schema. @capture: schema.name of the capture, its feed and its table; <table>_changes by default.
-- @insert_columns, @update_columns, @delete_columns: null captures all current columns, N'none' does not capture the operation,
--     otherwise a JSON array of columns. @shard: a number, or T-SQL over columns of the primary key only.
-- @key_change: new_only or delete_insert, for updates that change a row's key. @keep_unchanged: 1 also records updates that change no
--     chosen column. @session_keys: JSON array of session_context keys to record. @trace_key: key of the trace context; N'' for none.
--     @with_sequence: 1 shows readers the number of each event in its shard.
-- @guard_table: 1 makes the server refuse truncate and switch. @guard_schema: 1 makes it refuse table changes that would make writers
--     fail. @record_rows: 1 also begins to record the existing rows; record_rows:T goes on. @resource_version: expected version of the
--     capture; null skips the check.
-- @on_ddl: what a change of the table's columns does. pause: a new column is not recorded until refresh_capture. evolve: the schema guard
--     records a new column that has no values yet from the same transaction on, all else as pause. refuse: it refuses every change.
-- @not_for_replication: 1 leaves out the changes that a replication agent makes. The events then are not all changes of the table, so it
--     cannot be folded, and its rows are not counted against the events.
-- @filegroup: for the tables of a new capture; default that of the database. @compression: of its table of events, for whose compression
--     writers wait: none (default), row or page. An existing capture stays as it is stored.
-- errors: 77140 all problems of the request; nothing was changed. 77158 a snapshot of the table runs. 77101 another set-up is running, or
--     transactions hold the table; transient. 77155 it is at another @resource_version, or does not exist. 55000, 71000. 1222 as 77101, in a
--     caller's transaction
-- permission: to alter the table, and as for setup_feed
create or alter procedure <<schema>>.[enable_capture] (
    @table nvarchar(max),
    @capture nvarchar(128) = null,
    @insert_columns nvarchar(max) = null,
    @update_columns nvarchar(max) = null,
    @delete_columns nvarchar(max) = null,
    @shard nvarchar(max) = N'0',
    @shard_key_type sysname = N'int',
    @key_change varchar(15) = 'new_only',
    @keep_unchanged bit = 0,
    @session_keys nvarchar(max) = N'[]',
    @trace_key nvarchar(128) = N'traceparent',
    @with_sequence bit = 0,
    @guard_table bit = 1,
    @guard_schema bit = 1,
    @record_rows bit = 0,
    @resource_version bigint = null,
    @on_ddl varchar(10) = 'pause',
    @not_for_replication bit = 0,
    @filegroup sysname = null,
    @compression sysname = null
)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    set rowcount 0;
    -- If this and a writer deadlock, the writer wins.
    set deadlock_priority low;
    declare @object_id int = object_id(@table, N'U'), @message nvarchar(2048), @sql nvarchar(max);
    declare @table_schema nvarchar(128), @table_name nvarchar(128), @capture_id int, @no smallint, @is_enabled bit, @problem nvarchar(200);
    declare @events nvarchar(300), @event_schema nvarchar(128), @event_name nvarchar(128), @rows bigint, @feed_id int, @event_table int;
    declare @number bigint, @until datetime2(3), @lock_timeout int = @@lock_timeout, @is_own bit = case when @@trancount = 0 then 1 else 0 end;
    if @object_id is null
    begin
        set @message = concat(N'changefeed 71000: Could not find table "', left(@table, 300), N'" in this database, or you lack permission to see it; name it with its schema');
        throw 71000, @message, 0;
    end;
    select @table_schema = object_schema_name(@object_id), @table_name = object_name(@object_id);
    set @capture = isnull(@capture, concat(@table_schema, N'.', @table_name, N'_changes'));
    set @insert_columns = case when @insert_columns is null then N'[]' when @insert_columns = N'none' then null else @insert_columns end;
    set @update_columns = case when @update_columns is null then N'[]' when @update_columns = N'none' then null else @update_columns end;
    set @delete_columns = case when @delete_columns is null then N'[]' when @delete_columns = N'none' then null else @delete_columns end;
    set @trace_key = nullif(@trace_key, N'');
    if charindex(N'.', @capture) < 2
    begin
        set @message = concat(N'changefeed 55000: @capture "', @capture, N'" must be schema.name');
        throw 55000, @message, 1;
    end;
    set @event_schema = left(@capture, charindex(N'.', @capture) - 1);
    set @event_name = substring(@capture, charindex(N'.', @capture) + 1, 128);
    set @events = concat(quotename(@event_schema), N'.', quotename(@event_name));
    select @event_table = object_id(@events) from <<schema>>.[captures] as c where c.name = @capture;
    exec <<schema>>.[check_storage] @object_id = @event_table, @filegroup = @filegroup, @compression = @compression;
    if isnull(@key_change, '') not in ('new_only', 'delete_insert')
        throw 55000, N'changefeed 55000: @key_change must be new_only or delete_insert', 1;
    if isnull(@on_ddl, '') not in ('pause', 'evolve', 'refuse')
        throw 55000, N'changefeed 55000: @on_ddl must be pause, evolve or refuse', 1;
    if @on_ddl <> 'pause' and isnull(@guard_schema, 0) = 0
        throw 55000, N'changefeed 55000: @on_ddl = evolve and refuse need @guard_schema = 1, whose trigger sees the changes', 1;
    if isjson(isnull(@insert_columns, N'[]')) = 0 or isjson(isnull(@update_columns, N'[]')) = 0 or isjson(isnull(@delete_columns, N'[]')) = 0
        or isnull(isjson(@session_keys), 0) = 0
        throw 55000, N'changefeed 55000: columns and @session_keys must be JSON arrays, for example N''["id", "name"]''', 1;

    if @@trancount = 0 exec <<schema>>.[note_schemas] @name = @capture;
    -- Everybody queues behind what is waited for here.
    if @@lock_timeout < 0 or @@lock_timeout > 2000 set lock_timeout 2000;
    while 1 = 1
    begin
        begin try
            -- The last try has left no trace but these.
            select @capture_id = null, @no = null, @feed_id = null, @problem = null, @rows = null;
            begin transaction;
            exec <<schema>>.[lock_setup];
            select @capture_id = c.capture_id, @is_enabled = c.is_enabled from <<schema>>.[captures] as c where c.name = @capture;
            if @capture_id is null and @resource_version is not null
            begin
                set @message = concat(N'changefeed 77155: capture "', @capture, N'" is at resource version 0 (it does not exist), not ', @resource_version,
                    N': nothing was changed. A version above the current one comes from another database, or from before this database was restored. Read it again, then decide');
                throw 77155, @message, 1;
            end;
            if @capture_id is not null
            begin
                select @feed_id = f.feed_id from <<schema>>.[feeds] as f where f.name = @capture;
                exec <<schema>>.[check_version] @feed_id = @feed_id, @resource_version = @resource_version;
                if exists (
                    select 1 from <<schema>>.[captures] as c
                    inner join <<schema>>.[feeds] as f on f.name = c.name
                    where c.capture_id = @capture_id and (
                        c.key_change <> @key_change or c.keep_unchanged <> @keep_unchanged or c.session_keys <> @session_keys
                        or isnull(c.trace_key, N'') <> isnull(@trace_key, N'') or c.with_sequence <> @with_sequence
                        or c.guard_table <> @guard_table or c.guard_schema <> @guard_schema or c.on_ddl <> @on_ddl
                        or c.not_for_replication <> isnull(@not_for_replication, 0) or f.shard_key_type <> @shard_key_type))
                    set @problem = N'with other settings';
                select @no = t.table_no from <<schema>>.[capture_tables] as t where t.capture_id = @capture_id and t.object_id = @object_id;
                -- Of a capture of all columns, a list that names each of them is the same.
                if @no is not null and exists (
                    select 1 from <<schema>>.[capture_tables] as t
                    cross apply (values
                        (N'insert', t.insert_columns, @insert_columns), (N'update', t.update_columns, @update_columns), (N'delete', t.delete_columns, @delete_columns)
                    ) as o (operation, present, asked)
                    where t.capture_id = @capture_id and t.table_no = @no and (t.shard <> @shard or (isnull(o.present, N'') <> isnull(o.asked, N'') and (
                        isnull(o.present, N'') <> N'[]' or o.asked is null
                        or exists (select 1 from openjson(o.asked) as j where not exists (
                            select 1 from <<schema>>.[capture_columns] as k
                            where k.capture_id = t.capture_id and k.table_no = t.table_no and k.name = j.value collate database_default))
                        or exists (select 1 from <<schema>>.[capture_columns] as k
                            where k.capture_id = t.capture_id and k.table_no = t.table_no
                                and 1 = case o.operation when N'insert' then k.on_insert when N'update' then k.on_update else k.on_delete end
                                and not exists (select 1 from openjson(o.asked) as j where j.value collate database_default = k.name))))))
                    set @problem = N'with other columns or another shard';
                if @problem is not null
                begin
                    set @message = concat(N'changefeed 77140: capture "', @capture, N'" of this table already exists, ', @problem, N'; choose another name, or disable it, export it to its end and drop its feed first');
                    throw 77140, @message, 1;
                end;
                if @no is not null and @is_enabled = 1
                begin
                    -- Dropped or disabled triggers are recreated, which leaves a gap.
                    if exists (
                        select 1 from <<schema>>.[capture_tables] as t
                        where t.capture_id = @capture_id and t.table_no = @no and t.trigger_count > (
                            select count(*) from <<schema>>.[capture_triggers] as r
                            where r.capture_id = t.capture_id and r.table_no = t.table_no and r.is_disabled = 0))
                    begin
                        exec <<schema>>.[note_capture_gaps] @capture_id = @capture_id;
                        update <<schema>>.[captures] set is_changing = 1 where capture_id = @capture_id;
                        exec <<schema>>.[create_capture_objects] @capture_id = @capture_id, @table_no = @no;
                        update <<schema>>.[captures] set is_changing = 0 where capture_id = @capture_id;
                        exec <<schema>>.[bump_version] @feed_id = @feed_id;
                    end;
                    commit;
                    break;
                end;
            end
            else if object_id(@events) is not null
            begin
                set @message = concat(N'changefeed 77140: table "', @capture, N'" already exists and is not a capture; choose another name with @capture');
                throw 77140, @message, 1;
            end
            else if schema_id(@event_schema) is null
            begin
                set @message = concat(N'changefeed 77140: schema "', @event_schema, N'" of capture "', @capture, N'" not found; create it, or choose another name with @capture');
                throw 77140, @message, 1;
            end;
            exec <<schema>>.[check_captured]
                @object_id = @object_id, @name = @capture, @insert_columns = @insert_columns, @update_columns = @update_columns,
                @delete_columns = @delete_columns, @shard = @shard, @shard_key_type = @shard_key_type;

            if @capture_id is null
            begin
                insert into <<schema>>.[captures] (
                    name, key_change, keep_unchanged, session_keys, trace_key, with_sequence, guard_table, guard_schema, on_ddl, not_for_replication, is_enabled, is_changing, enabled_at)
                values (
                    @capture, @key_change, @keep_unchanged, @session_keys, @trace_key, @with_sequence, @guard_table, @guard_schema, @on_ddl, isnull(@not_for_replication, 0), 1, 1, <<schema>>.[now]());
                set @capture_id = scope_identity();
                set @sql = concat(N'create table ', @events, N' (
        changefeed_statement bigint not null,
        changefeed_row int not null,
        changefeed_image tinyint not null,
        changefeed_shard ', @shard_key_type, N' not null,
        changefeed_table smallint not null,
        changefeed_op char(1) not null,
        changefeed_tid bigint null,
        changefeed_at datetime2(3) not null,
        changefeed_session nvarchar(max) null,
        changefeed_trace nvarchar(512) null,
        changefeed_ddl nvarchar(max) null,
        constraint ', quotename(concat(N'pk:', @capture)), N' primary key (changefeed_statement, changefeed_row, changefeed_image)
            with (data_compression = ', isnull(@compression, N'none'), <<schema>>.[sequential_key](), N')
    )',
                    -- Without it, long values would go to the database's default filegroup.
                    isnull(N' on ' + quotename(@filegroup) + N' textimage_on ' + quotename(@filegroup), N''));
                exec sys.sp_executesql @sql;
                exec <<schema>>.[set_up]
                    @table_name = @events, @outbox = 1, @serialized = 0, @shard_key_type = @shard_key_type, @must_exist = 0,
                    @filegroup = @filegroup;
                update <<schema>>.[captures]
                set feed_id = (select f.feed_id from <<schema>>.[feeds] as f where f.name = @capture)
                where capture_id = @capture_id;
            end
            else
                update <<schema>>.[captures] set is_changing = 1 where capture_id = @capture_id;

            -- A shard that is a number is known before its first event, so that the windows until then are exported as empty ones.
            set @number = try_convert(bigint, @shard);
            if @number is not null
            begin
                set @sql = concat(N'if not exists (select 1 from <<schema_in_text>>.', quotename(concat(N'state:', @capture)), N' as s where s.shard_id = @number)
begin
    exec <<schema_in_text>>.', quotename(concat(N'lock_shard:', @capture)), N' @shard_id = @number, @lock_timeout = 2000;
    exec <<schema_in_text>>.', quotename(concat(N'update_state:', @capture)), N' @shard_id = @number, @time_hint = ''1970-01-01'', @count = 0;
end');
                exec sys.sp_executesql @sql, N'@number bigint', @number = @number;
            end;
            if @no is null
            begin
                select @no = count(*) from <<schema>>.[capture_tables] as t where t.capture_id = @capture_id;
                insert into <<schema>>.[capture_tables] (
                    capture_id, table_no, object_id, table_schema, table_name, shard, insert_columns, update_columns, delete_columns,
                    is_whole, trigger_count, recorded_columns, columns_upto)
                select
                    @capture_id, @no, @object_id, @table_schema, @table_name, @shard, @insert_columns, @update_columns, @delete_columns,
                    0, 0, N'[]', max(c.column_id)
                from sys.columns as c where c.object_id = @object_id;
                exec <<schema>>.[set_capture_columns] @capture_id = @capture_id, @table_no = @no;
                exec <<schema>>.[create_capture_objects] @capture_id = @capture_id, @table_no = @no;
                -- Creating the triggers has locked the table until the end of this transaction: only what needs that follows.
                set @sql = concat(N'<<schema_in_text>>.', quotename(concat(N'capture_rows.', @no, N':', @capture)));
                set @sql = concat(N'exec ', @sql, N' @how = ''any'', @rows = @rows output; exec ', @sql, N' @how = ''catalog'', @rows = @number output');
                exec sys.sp_executesql @sql, N'@rows bigint output, @number bigint output', @rows = @rows output, @number = @number output;
                update <<schema>>.[capture_tables]
                set base_rows = case when @rows > 0 or insert_columns is null or delete_columns is null or @not_for_replication = 1 then null else 0 end,
                    base_catalog = case when insert_columns is null or delete_columns is null or @not_for_replication = 1 then null else @number end,
                    is_whole = case when (@rows = 0 or @record_rows = 1) and isnull(@not_for_replication, 0) = 0 and insert_columns is not null and update_columns is not null and delete_columns is not null
                        then 1 else 0 end
                where capture_id = @capture_id and table_no = @no;
            end
            else
            begin
                exec <<schema>>.[change_capture_columns] @capture_id = @capture_id, @table_no = @no;
                insert into <<schema>>.[capture_gaps] (capture_id, table_no, reason, found_at, after_time)
                select @capture_id, @no, N'the capture was disabled, and changes made meanwhile were not recorded', <<schema>>.[now](),
                    -- The feed was sealed further meanwhile.
                    case when c.disabled_at < f.floor_time then c.disabled_at else f.floor_time end
                from <<schema>>.[feeds] as f
                inner join <<schema>>.[captures] as c on c.name = f.name
                where f.name = @capture;
            end;
            -- An empty table has nothing to record.
            if @record_rows = 1 and isnull(@rows, 1) > 0
            begin
                set @sql = concat(N'exec <<schema_in_text>>.', quotename(concat(N'capture_snapshot.', @no, N':', @capture)), N' @what = ''reset''');
                exec sys.sp_executesql @sql;
            end;
            update <<schema>>.[captures]
            set is_changing = 0,
                is_enabled = case when exists (
                    select 1 from <<schema>>.[capture_tables] as t
                    where t.capture_id = @capture_id and t.trigger_count = 0) then is_enabled else 1 end
            where capture_id = @capture_id;
            if @guard_schema = 1 and not exists (select 1 from sys.triggers as t where t.parent_class = 0 and t.name = N'<<schema_text>>_captures')
                exec <<schema>>.[guard_schema];
            else if @on_ddl = 'evolve' exec <<schema>>.[grant_guard];
            if @feed_id is not null exec <<schema>>.[bump_version] @feed_id = @feed_id;
            -- A capture just created is at its first version.
            else update <<schema>>.[feeds] set schema_print = <<schema>>.[columns_print](name, object_id) where name = @capture;
            -- Behind the version: begin_snapshot locks both in this order.
            if @record_rows = 1 and isnull(@rows, 1) > 0
                exec <<schema>>.[claim_recording] @capture = @capture, @table_no = @no, @by = N'enable_capture';
            commit;
            break;
        end try
        begin catch
            if @@trancount > 0 rollback;
            if (error_number() not in (1205, 1222) and not (error_number() = 77101 and error_message() like N'% shard %')) or @is_own = 0 throw;
            exec <<schema>>.[pause_setup] @capture = @capture, @lock_timeout = @lock_timeout, @until = @until output;
        end catch;
    end;
    if @@trancount = 0 and exists (
        select 1 from <<schema>>.[capture_tables] as t
        where t.capture_id = @capture_id and t.table_no = @no and t.base_rows is null and t.base_catalog is not null)
    begin
        select @rows = null, @problem = null;
        set @sql = concat(N'declare @expected bigint; exec <<schema_in_text>>.', quotename(concat(N'compare_table:', @capture)),
            N' @table_no = @no, @is_full = 1, @rows = @rows output, @expected = @expected output');
        begin try
            exec sys.sp_executesql @sql, N'@no smallint, @rows bigint output', @no = @no, @rows = @rows output;
        end try
        begin catch
            -- The capture is enabled; a failure would say that it is not.
            select @rows = null, @problem = concat(N' (', left(error_message(), 150), N')');
        end catch;
        if @rows is null
            print concat(N'changefeed: capture "', @capture, N'" is enabled, but the rows of "', left(@table, 300), N'" could not be counted while statements changed it', @problem, N'. ',
                N'Until compare_capture or doctor counts them, seals compare the server''s own number of rows alone. With row versions nothing delays a count: ',
                N'alter database current set allow_snapshot_isolation on');
    end;
end
