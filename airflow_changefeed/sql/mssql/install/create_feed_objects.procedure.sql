-- Creates or updates the objects of a feed: fills the templates from the catalog, in one pass, and executes them.
-- Existing tables and types stay; procedures, functions and views are replaced and keep their grants.
-- @feed_id: of a row in feeds. @filegroup, @compression: of tables that are created; null for the filegroup that an existing feed is in, and
--     page.
-- errors: 77101 another set-up is running; transient. 77106 the feed was dropped meanwhile
-- permission: internal; needs the right to create tables, procedures and roles
create or alter procedure <<schema>>.[create_feed_objects] (
    @feed_id int,
    @filegroup sysname = null,
    @compression sysname = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        create table #tokens (token varchar(30) collate database_default not null primary key, value nvarchar(max) collate database_default not null);
        declare @keys table (place int not null primary key, name nvarchar(128) not null, definition nvarchar(max) not null);
        declare @read_keys table (place int not null primary key, name nvarchar(128) not null);
        declare @name nvarchar(128), @object_id int, @kind varchar(10), @shard_type varchar(16), @sequence nvarchar(300);
        declare @ulid_column nvarchar(128), @shard_column nvarchar(128);
        declare @table_schema nvarchar(128), @table_name nvarchar(128);
        declare @place int, @object varchar(40), @type varchar(10), @body nvarchar(max), @at int, @is_capture bit = 0, @knows nchar(1) = N'1';
        declare @full nvarchar(300), @message nvarchar(2048), @breath nvarchar(5) = N',' + nchar(10) + N'    ';

        select
            @name = f.name, @object_id = f.object_id, @kind = f.kind, @shard_type = f.shard_key_type, @sequence = f.sequence_name,
            @ulid_column = f.ulid_column, @shard_column = f.shard_column
        from <<schema>>.[feeds] as f where f.feed_id = @feed_id;
        if @name is null
        begin
            set @message = concat(N'changefeed 77106: feed ', @feed_id, N' was dropped while it was being upgraded');
            throw 77106, @message, 1;
        end;
        select @table_schema = object_schema_name(@object_id), @table_name = object_name(@object_id);
        if exists (select 1 from <<schema>>.[captures] as c where c.name = @name) set @is_capture = 1;
        -- Two images of a row are one event.
        insert into @keys (place, name, definition)
        select k.place, k.name, k.definition from <<schema>>.[key_columns](@object_id) as k
        where @is_capture = 0 or k.name <> N'changefeed_image';
        -- Serialized writers may have the ULID and the shard in their key; a page has them under its own names.
        insert into @read_keys (place, name)
        select k.place, k.name from @keys as k where @kind = 'outbox' or k.name collate Latin1_General_CI_AS not in (N'ulid', N'shard_id');

        -- An outbox created by mssql-changefeed v2 does not record transactions: each row counts as its own.
        set @full = concat(N'<<schema_in_text>>.', quotename(concat(N'outbox:', @name)));
        if object_id(@full) is not null and not exists (
            select 1 from sys.columns as c where c.object_id = object_id(@full) and c.name = N'changefeed_tid') set @knows = N'0';
        -- A table that this version adds to an existing feed.
        if @filegroup is null
            select @filegroup = g.name
            from sys.indexes as i inner join sys.filegroups as g on g.data_space_id = i.data_space_id
            where i.object_id = object_id(concat(N'<<schema_in_text>>.', quotename(concat(N'state:', @name)))) and i.index_id = 1;
        insert into #tokens (token, value)
        values
            ('schema', N'<<schema_in_text>>'),
            ('schema_text', N'<<schema_text_in_text>>'),
            ('schema_in_text', N'<<schema_in_text_in_text>>'),
            ('schema_name', N'<<schema_name_in_text>>'),
            ('schema_name_in_text', N'<<schema_name_in_text_in_text>>'),
            ('role_prefix', N'<<role_prefix_in_text>>'),
            ('role_prefix_text', N'<<role_prefix_text_in_text>>'),
            ('role_prefix_in_text', N'<<role_prefix_in_text_in_text>>'),
            ('feed_id', convert(nvarchar(20), @feed_id)),
            ('object_id', convert(nvarchar(20), @object_id)),
            ('name', replace(@name, N']', N']]')),
            ('name_text', replace(@name, N'''', N'''''')),
            ('name_in_text', replace(replace(@name, N']', N']]'), N'''', N'''''')),
            ('table', concat(quotename(@table_schema), N'.', quotename(@table_name))),
            ('shard_type', @shard_type),
            ('shard_default', case when @shard_type = 'uniqueidentifier' then N''
                else concat(N'constraint ', quotename(concat(N'def:outbox.shard_id:', @name)), N' default 0') end),
            ('shard_parameter_default', case when @shard_type = 'uniqueidentifier' then N'' else N'= 0' end),
            ('lock_principal', case when exists (select 1 from <<schema>>.[feeds] as f where f.feed_id = @feed_id and f.is_of_v2 = 1)
                then N'public' else N'<<schema_text_in_text>>.users' end),
            ('check_capture', case when @is_capture = 0 then N'' else concat(
                N'exec <<schema_in_text>>.', quotename(concat(N'check_capture:', @name)), N';') end),
            ('knows_transactions', @knows),
            ('transaction', case @knows when N'1' then N'o.changefeed_tid' else N'o.order_sequence' end),
            ('events', case @is_capture when 1 then N'o.changefeed_rows' else N'1' end),
            ('on_filegroup', isnull(N' on ' + quotename(@filegroup), N'')),
            ('compression', isnull(@compression, N'page')),
            ('sequential_key', <<schema>>.[sequential_key]()),
            ('sequence', isnull(@sequence, N'<<schema_in_text>>.[sequence]')),
            ('shard_expression', case
                when @shard_column is null then concat(N'convert(', @shard_type, N', ',
                    case when @shard_type = 'uniqueidentifier' then N'''00000000-0000-0000-0000-000000000000''' else N'0' end, N')')
                else N't.' + quotename(@shard_column) end),
            ('ulid_expression', case
                when @ulid_column is null
                    then N'convert(binary(16), convert(int, ''changefeed 77122: name the ULID column of the table with @ulid_column of setup_feed''))'
                else N't.' + quotename(@ulid_column) end);
        -- Serialized writers may have no key, or only ULID and shard.
        insert into #tokens (token, value)
        select n.token, isnull(n.value, N'')
        from (
            select 'key_definitions', string_agg(convert(nvarchar(max), k.definition), @breath) within group (order by k.place) from @keys as k
            union all
            select 'keys', string_agg(convert(nvarchar(max), quotename(k.name)), N', ') within group (order by k.place) from @keys as k
            union all
            select 'outbox_keys', string_agg(convert(nvarchar(max), N'o.' + quotename(k.name)), N', ') within group (order by k.place) from @keys as k
            union all
            select 'page_keys', string_agg(convert(nvarchar(max), N'p.' + quotename(k.name)), N', ') within group (order by k.place) from @keys as k
            union all
            select 'numbered_keys', string_agg(convert(nvarchar(max), N'n.' + quotename(k.name)), N', ') within group (order by k.place) from @keys as k
            union all
            select 'history_keys', string_agg(convert(nvarchar(max), N'h.' + quotename(k.name)), N', ') within group (order by k.place) from @keys as k
            union all
            select 'history_is_feed', string_agg(convert(nvarchar(max), concat(N'f.', quotename(k.name), N' = h.', quotename(k.name))), N' and ') within group (order by k.place) from @keys as k
            union all
            select 'history_is_outbox', string_agg(convert(nvarchar(max), concat(N'o.', quotename(k.name), N' = h.', quotename(k.name))), N' and ') within group (order by k.place) from @keys as k
            union all
            select 'history_is_table', string_agg(convert(nvarchar(max), concat(N't.', quotename(k.name), N' = h.', quotename(k.name))), N' and ') within group (order by k.place) from @keys as k
            union all
            select 'key_names_in_text', replace(string_agg(convert(nvarchar(max), k.name), N', ') within group (order by k.place), N'''', N'''''') from @keys as k
            union all
            select 'history_columns_in_text', replace(string_agg(convert(nvarchar(max), concat(N', h.', quotename(k.name))), N'') within group (order by k.place), N'''', N'''''') from @keys as k
            union all
            select 'read_names_in_text', replace(string_agg(convert(nvarchar(max), concat(N', ', k.name)), N'') within group (order by k.place), N'''', N'''''') from @read_keys as k
            union all
            select 'read_columns_in_text', replace(string_agg(convert(nvarchar(max), concat(N', r.', quotename(k.name))), N'') within group (order by k.place), N'''', N'''''') from @read_keys as k
            union all
            select 'keys_after_comma', string_agg(convert(nvarchar(max), concat(N', ', quotename(k.name))), N'') within group (order by k.place) from @read_keys as k
            union all
            select 'feed_keys_after_comma', string_agg(convert(nvarchar(max), concat(N', f.', quotename(k.name))), N'') within group (order by k.place) from @read_keys as k
            union all
            select 'view_keys', string_agg(convert(nvarchar(max), concat(@breath, N't.', quotename(k.name))), N'') within group (order by k.place) from @read_keys as k
        ) as n (token, value);

        select top (1) @place = t.place from <<schema>>.[feed_templates](@kind, @is_capture) as t order by t.place;
        while @place is not null
        begin
            -- Object by object, because readers and writers of an existing feed continue meanwhile. Each under the set-up lock, so that two
            -- set-ups of a feed, or a set-up and a drop, do not interleave.
            begin transaction;
            exec <<schema>>.[lock_setup];
            if not exists (select 1 from <<schema>>.[feeds] as f where f.feed_id = @feed_id)
            begin
                set @message = concat(N'changefeed 77106: feed "', @name, N'" was dropped while it was being upgraded');
                throw 77106, @message, 1;
            end;
            if <<schema>>.[version]() <> '<<version>>'
                throw 77101, N'changefeed 77101: another version of changefeed is being installed in this database; retry when that has finished', 1;
            select @object = t.object, @type = t.type, @body = t.body from <<schema>>.[templates]() as t where t.place = @place;
            set @full = concat(N'<<schema_in_text>>.', quotename(concat(case @type when 'type' then 'type:' end, @object, N':', @name)));
            if not (@type = 'table' and object_id(@full) is not null) and not (@type = 'type' and type_id(@full) is not null)
            begin
                exec <<schema>>.[fill_template] @body = @body output;
                exec sys.sp_executesql @body;
            end;
            commit;
            set @at = @place;
            set @place = null;
            select top (1) @place = t.place from <<schema>>.[feed_templates](@kind, @is_capture) as t
            where t.place > @at
            order by t.place;
        end;
        update <<schema>>.[feeds]
        set resource_version = resource_version + case when version in ('', <<schema>>.[version]()) then 0 else 1 end,
            version = <<schema>>.[version](),
            upgrade_problem = null
        where feed_id = @feed_id;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
