-- Called by the schema guard after a table or trigger was changed, in that transaction. First lets captures that evolve record the columns
-- that were added (evolve_captures), then refuses a change that would make writers of a captured table fail, or no longer be recorded, and
-- any change of columns that a capture refuses.
-- @event: type of the statement. After ALTER_TABLE only captures of that table, or with their events in it, are checked; otherwise all.
-- @table_schema, @table_name: of the changed table. @added: JSON array of the columns that the statement added to it, or null.
-- @statement: its text.
-- errors: 77144
-- permission: the schema guard
create or alter procedure <<schema>>.[check_captured_tables] (
    @event nvarchar(128) = null,
    @table_schema nvarchar(128) = null,
    @table_name nvarchar(128) = null,
    @added nvarchar(max) = null,
    @statement nvarchar(max) = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @found nvarchar(max), @message nvarchar(2048), @altered int;
    declare @tables table (
        capture nvarchar(128) not null, capture_id int not null, table_no smallint not null, object_id int not null, name nvarchar(300) not null, triggers int not null);
    if @added is not null
        exec <<schema>>.[evolve_captures] @table_schema = @table_schema, @table_name = @table_name, @added = @added, @statement = @statement;
    if @event = N'ALTER_TABLE' set @altered = object_id(concat(quotename(@table_schema), N'.', quotename(@table_name)));
    insert into @tables (capture, capture_id, table_no, object_id, name, triggers)
    select c.name, c.capture_id, t.table_no, t.object_id, concat(t.table_schema, N'.', t.table_name), t.trigger_count
    from <<schema>>.[captures] as c
    inner join <<schema>>.[capture_tables] as t on t.capture_id = c.capture_id
    left join <<schema>>.[feeds] as f on f.name = c.name
    where c.is_enabled = 1 and c.is_changing = 0 and c.guard_schema = 1 and (@altered is null or @altered in (t.object_id, f.object_id));
    select @found = string_agg(convert(nvarchar(max), p.problem), N'; ')
    from (
        select concat(N'table ', t.name, N' is captured by "', t.capture, N'"; disable the capture first') as problem
        from @tables as t
        where object_name(t.object_id) is null or concat(object_schema_name(t.object_id), N'.', object_name(t.object_id)) <> t.name
        union all
        select concat(N'column "', k.name, N'" of table ', t.name, N' (', k.definition, N') is captured by "', t.capture,
            N'"; remove it from the capture first (refresh_capture, @without = N''["', string_escape(k.name, 'json'), N'"]''), then change it, then refresh again to capture it')
        from @tables as t
        inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id and c.on_ddl <> 'refuse'
        inner join <<schema>>.[capture_columns] as k on k.capture_id = t.capture_id and k.table_no = t.table_no
        where object_name(t.object_id) is not null and not exists (
            select 1 from <<schema>>.[captured_columns](t.object_id) as s
            where s.name = k.name collate database_default and s.definition = k.definition collate database_default and isnull(s.key_place, 0) = isnull(k.key_place, 0))
        union all
        select distinct concat(N'capture "', t.capture, N'" refuses changes of its tables'' columns and keys; allow them first (refresh_capture, @on_ddl = ''pause''), ',
            N'change the table, then refuse them again (refresh_capture, @on_ddl = ''refuse'')')
        from @tables as t
        inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id and c.on_ddl = 'refuse'
        inner join <<schema>>.[feeds] as f on f.name = t.capture
        where f.schema_print <> <<schema>>.[columns_print](f.name, f.object_id)
        union all
        select concat(N'table ', t.name, N' is captured by "', t.capture, N'", and would no longer have the same owner as changefeed, so its writers would lack permission to record changes; disable the capture first')
        from @tables as t
        where isnull(@event, N'ALTER_SCHEMA') in (N'ALTER_SCHEMA', N'ALTER_AUTHORIZATION_DATABASE')
            and objectproperty(t.object_id, 'OwnerId') <> objectproperty(object_id(N'<<schema_in_text>>.[feeds]'), 'OwnerId')
        union all
        select distinct concat(N'table ', t.capture, N' holds the recorded changes of ', t.name, N'; disable the capture first, and drop its feed (drop_feed)')
        from @tables as t
        inner join <<schema>>.[feeds] as f on f.name = t.capture
        where object_name(f.object_id) is null
            or concat(object_schema_name(f.object_id), N'.', object_name(f.object_id)) <> t.capture
            or exists (
                select 1 from <<schema>>.[capture_columns] as k
                where k.capture_id = t.capture_id and k.table_no = t.table_no and not exists (
                    select 1 from sys.columns as s where s.object_id = f.object_id and s.name = k.stored_name collate database_default))
        union all
        select concat(N'a trigger of table ', t.name, N' belongs to capture "', t.capture, N'", which needs it; disable the capture instead')
        from @tables as t
        where object_name(t.object_id) is not null and t.triggers > (
            select count(*) from <<schema>>.[capture_triggers] as r
            where r.capture_id = t.capture_id and r.table_no = t.table_no and r.is_disabled = 0)
    ) as p;
    if @found is not null
    begin
        set @message = concat(N'changefeed 77144: nothing was changed: ', left(@found, 1800));
        throw 77144, @message, 1;
    end;
end
