-- Creates a feed over a table, or upgrades an existing one: shared by setup_feed and upgrade_feed.
-- A feed of mssql-changefeed v2, which has no registry, is added to feeds with its shard key type and its own sequence.
-- Parameters: see setup_feed. @must_exist: 1 refuses to create a new feed.
-- errors: as for setup_feed; here 55000, 71000, 77106, 77111, 77116 and 77155
-- permission: internal
create or alter procedure <<schema>>.[set_up] (
    @table_name nvarchar(max),
    @outbox bit,
    @serialized bit,
    @shard_key_type sysname = null,
    @time_tolerance_ms bigint = null,
    @ulid_column sysname = null,
    @shard_column sysname = null,
    @must_exist bit,
    @resource_version bigint = null,
    @max_hold_ms bigint = null,
    @filegroup sysname = null,
    @compression sysname = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @object_id int = object_id(@table_name, N'U'), @message nvarchar(2048);
        declare @kind varchar(10) = case when @outbox = 1 then 'outbox' else 'serialized' end;
        declare @name nvarchar(128), @feed_id int, @feed int, @state int, @type sysname, @sequence nvarchar(300), @is_new bit = 0, @is_known bit = 0;
        if (isnull(@outbox, 0) = 0 and isnull(@serialized, 0) = 0) or (@outbox = 1 and @serialized = 1)
            throw 55000, N'changefeed 55000: please pass *either* @outbox=1 *or* @blocking=1 (@serialize_writers=1)', 1;
        if @object_id is null
        begin
            set @message = concat(N'changefeed 71000: Could not find table "', left(@table_name, 300), N'" in this database, or you lack permission to see it; name it with its schema');
            throw 71000, @message, 0;
        end;
        if @shard_key_type not in (N'int', N'bigint', N'smallint', N'tinyint', N'uniqueidentifier')
        begin
            set @message = concat(N'changefeed 77116: @shard_key_type must be int, bigint, smallint, tinyint or uniqueidentifier, not "', @shard_key_type, N'"');
            throw 77116, @message, 1;
        end;
        if @time_tolerance_ms not between 0 and 3153600000000
            throw 77116, N'changefeed 77116: @time_tolerance_ms must be 0 to 3153600000000 milliseconds (100 years)', 1;
        if @max_hold_ms <> -1 and @max_hold_ms not between 1 and 3153600000000
            throw 77116, N'changefeed 77116: @max_hold_ms must be 1 to 3153600000000 milliseconds (100 years), or -1 to keep events for as long as they are needed', 1;
        if @kind = 'serialized' and (@filegroup is not null or @compression is not null)
            throw 77116, N'changefeed 77116: a feed of serialized writers keeps its events in your table, so @filegroup and @compression have no effect; omit them', 1;
        exec <<schema>>.[check_table] @object_id = @object_id, @kind = @kind;
        set @name = concat(object_schema_name(@object_id), N'.', object_name(@object_id));
        set @feed = object_id(concat(N'<<schema_in_text>>.', quotename(concat(N'feed:', @name))));
        exec <<schema>>.[check_storage] @object_id = @feed, @filegroup = @filegroup, @compression = @compression;

        -- Recorded even if this call is refused.
        if @@trancount = 0 exec <<schema>>.[note_schemas] @name = @name;
        -- An existing feed is updated object by object, because its readers and writers continue; a new one is created completely or not at
        -- all.
        begin transaction;
        exec <<schema>>.[lock_setup];
        select @feed_id = f.feed_id, @type = f.shard_key_type, @is_known = 1 from <<schema>>.[feeds] as f where f.name = @name;
        set @state = object_id(concat(N'<<schema_in_text>>.', quotename(concat(N'state:', @name))));
        if @feed_id is null and @state is null and @must_exist = 1
        begin
            set @message = concat(N'changefeed 77106: feed "', @name, N'" not found in this database; create it with setup_feed');
            throw 77106, @message, 1;
        end;
        if @feed_id is null and @resource_version is not null
        begin
            set @message = concat(N'changefeed 77155: feed "', @name, N'" is at resource version 0 (it does not exist), not ', @resource_version,
                N': nothing was changed. A version above the current one comes from another database, or from before this database was restored. Read it again, then decide');
            throw 77155, @message, 1;
        end;
        if @is_known = 1 exec <<schema>>.[check_version] @feed_id = @feed_id, @resource_version = @resource_version;
        if @feed_id is null and @state is null set @is_new = 1;
        if @feed_id is null
        begin
            if @is_new = 0
            begin
                select @type = t.name
                from sys.columns as c inner join sys.types as t on t.user_type_id = c.user_type_id
                where c.object_id = @state and c.name = N'shard_id';
                if object_id(concat(N'<<schema_in_text>>.', quotename(concat(N'sequence:', @name)))) is not null
                    set @sequence = concat(N'<<schema_in_text>>.', quotename(concat(N'sequence:', @name)));
                if (object_id(concat(N'<<schema_in_text>>.', quotename(concat(N'outbox:', @name)))) is null and @kind = 'outbox')
                    or (object_id(concat(N'<<schema_in_text>>.', quotename(concat(N'outbox:', @name)))) is not null and @kind = 'serialized')
                begin
                    set @message = concat(N'changefeed 77111: feed "', @name, N'" already exists in the other mode; drop it first, which discards its order');
                    throw 77111, @message, 1;
                end;
            end;
            insert into <<schema>>.[feeds] (name, object_id, kind, shard_key_type, sequence_name, is_of_v2, version, resource_version)
            values (@name, @object_id, @kind, isnull(@type, isnull(@shard_key_type, N'int')), @sequence, case @is_new when 0 then 1 else 0 end, '',
                1 + isnull((select d.resource_version from <<schema>>.[dropped_feeds] as d where d.name = @name), 0));
            set @feed_id = scope_identity();
            select @type = f.shard_key_type from <<schema>>.[feeds] as f where f.feed_id = @feed_id;
        end;
        set @shard_key_type = isnull(@shard_key_type, @type);
        exec <<schema>>.[check_feed] @feed_id = @feed_id, @object_id = @object_id, @kind = @kind, @shard_key_type = @shard_key_type;
        -- A column named once stays set.
        select @ulid_column = isnull(@ulid_column, f.ulid_column), @shard_column = isnull(@shard_column, f.shard_column)
        from <<schema>>.[feeds] as f where f.feed_id = @feed_id;
        exec <<schema>>.[find_columns]
            @object_id = @object_id, @kind = @kind, @shard_key_type = @shard_key_type,
            @ulid_column = @ulid_column output, @shard_column = @shard_column output;
        update <<schema>>.[feeds]
        set object_id = @object_id,
            tolerance_ms = isnull(@time_tolerance_ms, tolerance_ms),
            max_hold_ms = isnull(@max_hold_ms, max_hold_ms),
            ulid_column = @ulid_column,
            shard_column = @shard_column,
            -- An identical repetition is not a change; a table change since note_schemas, or in the caller's transaction, is.
            resource_version = resource_version + case when @is_known = 1 and (
                schema_print <> <<schema>>.[columns_print](@name, @object_id)
                or object_id <> @object_id or tolerance_ms <> @time_tolerance_ms or max_hold_ms <> @max_hold_ms
                or isnull(ulid_column, N'') <> isnull(@ulid_column, N'') or isnull(shard_column, N'') <> isnull(@shard_column, N'')) then 1 else 0 end,
            schema_print = isnull(<<schema>>.[columns_print](@name, @object_id), schema_print)
        where feed_id = @feed_id;
        if @is_new = 0 commit;
        exec <<schema>>.[create_feed_objects] @feed_id = @feed_id, @filegroup = @filegroup, @compression = @compression;
        if @is_new = 1 commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
