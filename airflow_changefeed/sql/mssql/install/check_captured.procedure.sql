-- Throws if a table cannot be captured as requested, naming every problem.
-- @insert_columns, @update_columns, @delete_columns: as in capture_tables. @shard: the expression. @name: of the capture.
-- errors: 77140
-- permission: internal
create or alter procedure <<schema>>.[check_captured] (
    @object_id int,
    @name nvarchar(128),
    @insert_columns nvarchar(max),
    @update_columns nvarchar(max),
    @delete_columns nvarchar(max),
    @shard nvarchar(max),
    @shard_key_type sysname
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @table nvarchar(300) = concat(object_schema_name(@object_id), N'.', object_name(@object_id));
    declare @problems nvarchar(max) = N'', @found nvarchar(max), @message nvarchar(2048), @sql nvarchar(max), @keys nvarchar(max), @owner int, @other int;
    declare @asked table (operation varchar(10) not null, name nvarchar(128) not null);
    declare @columns table (name nvarchar(128) not null primary key, problem nvarchar(300) null, is_key bit not null, is_asked bit not null);

    insert into @asked (operation, name)
    select 'insert', j.value from openjson(isnull(@insert_columns, N'[]')) as j
    union all
    select 'update', j.value from openjson(isnull(@update_columns, N'[]')) as j
    union all
    select 'delete', j.value from openjson(isnull(@delete_columns, N'[]')) as j;
    insert into @columns (name, problem, is_key, is_asked)
    select
        c.name, c.problem, case when c.key_place is null then 0 else 1 end,
        case when @insert_columns = N'[]' or @update_columns = N'[]' or @delete_columns = N'[]'
            or exists (select 1 from @asked as a where a.name = c.name collate database_default) then 1 else 0 end
    from <<schema>>.[captured_columns](@object_id) as c;

    if @insert_columns is null and @update_columns is null and @delete_columns is null
        set @problems = concat(@problems, N'; capture at least one of insert, update and delete');
    set @found = null;
    select @found = string_agg(convert(nvarchar(max), a.name), N', ') from (select distinct s.name from @asked as s) as a
    where not exists (select 1 from @columns as c where c.name = a.name);
    if @found is not null set @problems = concat(@problems, N'; it has no column ', @found);
    set @found = null;
    select @found = string_agg(convert(nvarchar(max), a.name), N', ') from (select s.name from @asked as s group by s.operation, s.name having count(*) > 1) as a;
    if @found is not null set @problems = concat(@problems, N'; column ', @found, N' is named twice');
    set @found = null;
    select @found = string_agg(convert(nvarchar(max), concat(N'column ', c.name, N' ', c.problem)), N'; ')
    from @columns as c where c.is_asked = 1 and c.problem is not null;
    if @found is not null set @problems = concat(@problems, N'; ', @found, N' (or choose other columns)');
    if @update_columns is not null and not exists (select 1 from @columns as c where c.is_key = 1)
        set @problems = concat(@problems, N'; it has no primary key to match the old and new row of an update; add one, or capture only inserts and deletes');
    if (select count(*) from @columns as c where c.is_asked = 1) > 1013
        set @problems = concat(@problems, N'; ', (select count(*) from @columns as c where c.is_asked = 1), N' columns are ',
            (select count(*) from @columns as c where c.is_asked = 1) - 1013, N' more than fit into the capture''s table with its own eleven; choose fewer columns');
    if exists (select 1 from sys.tables as t where t.object_id = @object_id and t.is_memory_optimized = 1)
        set @problems = concat(@problems, N'; it is memory-optimized, and such tables do not support the triggers of a capture');
    if exists (select 1 from sys.tables as t where t.object_id = @object_id and t.is_filetable = 1)
        set @problems = concat(@problems, N'; it is a file table');
    if exists (select 1 from sys.tables as t where t.object_id = @object_id and 1 in (t.is_node, t.is_edge))
        set @problems = concat(@problems, N'; it is a graph table (node or edge), whose rows are linked by hidden columns that a capture does not record');
    if object_schema_name(@object_id) = N'<<schema_text>>' or exists (select 1 from <<schema>>.[captures] as c where c.name = @table)
        set @problems = concat(@problems, N'; it belongs to changefeed');
    if len(@name + N'.') - 1 > 102
        set @problems = concat(@problems, N'; the capture''s name "', @name, N'" has ', len(@name + N'.') - 1 - 102, N' characters more than the limit of 102');
    -- As folder_problems in Python: a name as that of a folder.
    with units as (
        select n.name, 1 as place from (values (@name), (@table)) as n (name)
        union all
        select u.name, u.place + 1 from units as u where u.place < datalength(u.name) / 2
    )
    select @problems = concat(@problems, string_agg(convert(nvarchar(max), concat(N'; the name "', s.name, N'" needs a folder of ', s.bytes,
        N' characters in outputs, and file systems allow 255 (each character other than A-Z a-z 0-9 . _ - takes 5 to 9); choose a shorter one')), N''))
    from (
        select c.name, sum(case
            when c.unit between 0xDC00 and 0xDFFF then 0
            when c.unit between 0xDBC0 and 0xDBFF then 9
            when c.unit between 0xD800 and 0xDBBF then 8
            when c.unit > 0xFFF then 7
            when c.unit > 0xFF then 6
            when nchar(c.unit) collate Latin1_General_BIN2 like N'[-.A-Za-z0-9]' or (c.unit = 0x5F and c.place > 1) then 1
            else 5 end) as bytes
        from (
            select u.name, u.place, unicode(substring(u.name collate Latin1_General_BIN2, u.place, 1)) as unit from units as u
        ) as c
        group by c.name
    ) as s
    where s.bytes > 255
    option (maxrecursion 400);
    set @found = null;
    select @found = string_agg(convert(nvarchar(max), t.name), N', ')
    from sys.trigger_events as e
    inner join sys.triggers as t on t.object_id = e.object_id
    where t.parent_id = @object_id and e.is_first = 1 and not exists (select 1 from <<schema>>.[capture_triggers] as k where k.trigger_id = t.object_id)
        and ((e.type_desc = N'INSERT' and @insert_columns is not null)
            or (e.type_desc = N'UPDATE' and @update_columns is not null)
            or (e.type_desc = N'DELETE' and @delete_columns is not null));
    if @found is not null
        set @problems = concat(@problems, N'; trigger ', @found, N' is set to fire first, but the capture''s trigger must, or changes by other triggers would be recorded before their cause; reset it with sp_settriggerorder');
    -- Captures may fire in any order among themselves, because they change nothing that is captured.
    set @found = null;
    select @found = string_agg(convert(nvarchar(max), t.name), N', ')
    from sys.trigger_events as e
    inner join sys.triggers as t on t.object_id = e.object_id
    where t.parent_id = @object_id and e.is_first = 1 and exists (
            select 1 from <<schema>>.[capture_triggers] as k
            inner join <<schema>>.[captures] as c on c.capture_id = k.capture_id
            where k.trigger_id = t.object_id and c.name <> @name)
        and exists (
            select 1 from sys.trigger_events as o
            inner join sys.triggers as u on u.object_id = o.object_id
            where u.parent_id = @object_id and o.type_desc = e.type_desc and u.is_instead_of_trigger = 0
                and not exists (select 1 from <<schema>>.[capture_triggers] as k where k.trigger_id = u.object_id))
        and ((e.type_desc = N'INSERT' and @insert_columns is not null)
            or (e.type_desc = N'UPDATE' and @update_columns is not null)
            or (e.type_desc = N'DELETE' and @delete_columns is not null));
    if @found is not null
        set @problems = concat(@problems, N'; trigger ', @found, N' of another capture already fires first, and other triggers of the table might fire between both; use that capture');
    if exists (select 1 from sys.configurations as o where o.name = N'nested triggers' and convert(int, o.value_in_use) = 0)
        set @problems = concat(@problems, N'; the server''s option "nested triggers" is off, so changes by other triggers would not be recorded; turn it on');
    -- Rights are not checked along a chain of one owner, and dbo and the role db_owner are two.
    set @owner = objectproperty(@object_id, 'OwnerId');
    set @other = objectproperty(object_id(N'<<schema_in_text>>.[feeds]'), 'OwnerId');
    if @other <> @owner
        set @problems = concat(@problems, N'; it is owned by ', user_name(@owner), N' and changefeed by ', user_name(@other),
            N', so its writers lack permission to record changes; give both schemas the same owner with alter authorization');
    set @other = null;
    select @other = s.principal_id from sys.schemas as s where s.name = left(@name, charindex(N'.', @name) - 1);
    if @other <> @owner
        set @problems = concat(@problems, N'; it is owned by ', user_name(@owner), N' and the schema of the capture by ', user_name(@other),
            N', so its writers lack permission to record changes; choose another schema with @capture');
    if nullif(ltrim(@shard), N'') is null
        set @problems = concat(@problems, N'; @shard is missing; pass a number, or a T-SQL expression over columns of the primary key');
    if @problems = N''
    begin
        -- The server's rules for a persisted computed column: only these columns, no subquery, deterministic.
        select @keys = string_agg(convert(nvarchar(max), k.definition), N', ') within group (order by k.place) from <<schema>>.[key_columns](@object_id) as k;
        begin try
            set @sql = concat(N'create table <<schema_in_text>>.[check.capture] (', isnull(@keys, N'changefeed_nothing int'),
                N', changefeed_shard as (convert(', @shard_key_type, N', (', @shard, N'))) persisted)');
            exec sys.sp_executesql @sql;
            exec sys.sp_executesql N'drop table <<schema_in_text>>.[check.capture]';
            if try_convert(bigint, @shard) is not null
            begin
                set @sql = concat(N'declare @shard ', @shard_key_type, N' = convert(', @shard_key_type, N', ', @shard, N');');
                exec sys.sp_executesql @sql;
            end;
        end try
        begin catch
            set @message = concat(N'changefeed 77140: table "', @table, N'" cannot be captured: the shard "', left(@shard, 300),
                N'" must be a number, or a deterministic expression of type ', @shard_key_type, N' over columns of its primary key only: ', left(error_message(), 500));
            throw 77140, @message, 1;
        end catch;
    end;
    if @problems <> N''
    begin
        set @message = concat(N'changefeed 77140: table "', @table, N'" cannot be captured: ', substring(@problems, 3, 1700));
        throw 77140, @message, 1;
    end;
end
