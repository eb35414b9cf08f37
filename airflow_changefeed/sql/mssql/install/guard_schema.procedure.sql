-- Creates or recreates the schema guard: a database trigger that refuses changes that would make writers of captured tables fail, and lets
-- captures that evolve record added columns. In the caller's transaction, under the set-up lock. It runs as its own user: someone altering a table may not see the captured ones, which would
-- then look dropped. Not as dbo: after a restore whose owner has no login on this server, everything that runs as dbo fails (15517), and so
-- would each alter table. A user without login cannot lose its login [Microsoft: EXECUTE AS, "Security considerations"], and cannot be
-- dropped while the trigger exists. It may see definitions, call one procedure, and change what evolves (grant_guard).
-- permission: internal; needs the right to create users and database triggers
create or alter procedure <<schema>>.[guard_schema]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @sql nvarchar(max) = N'-- Refuses changes that would make writers of captured tables fail, or bypass their captures. Created by changefeed.
create or alter trigger [<<schema_name_in_text>>_captures] on database with execute as ''<<schema_text_in_text>>.guard''
for alter_table, drop_table, rename, alter_schema, alter_trigger, drop_trigger, alter_authorization_database
as
begin
    set nocount on;
    -- What methods of xml need. The session that changes a table may have other settings, and its statement would fail (error 1934).
    set ansi_padding, ansi_warnings, arithabort, concat_null_yields_null on;
    set numeric_roundabort off;
    declare @event xml = eventdata(), @type nvarchar(128), @schema nvarchar(128), @table nvarchar(128), @statement nvarchar(max), @added nvarchar(max);
    select
        @type = @event.value(''(/EVENT_INSTANCE/EventType)[1]'', ''nvarchar(128)''),
        @schema = @event.value(''(/EVENT_INSTANCE/SchemaName)[1]'', ''nvarchar(128)''),
        @table = @event.value(''(/EVENT_INSTANCE/ObjectName)[1]'', ''nvarchar(128)''),
        @statement = @event.value(''(/EVENT_INSTANCE/TSQLCommand/CommandText)[1]'', ''nvarchar(max)'');
    select @added = N''['' + string_agg(convert(nvarchar(max), N''"'' + string_escape(c.name.value(''.'', ''nvarchar(max)''), ''json'') + N''"''), N'','') + N'']''
    from @event.nodes(''/EVENT_INSTANCE[EventType = "ALTER_TABLE"]/AlterTableActionList/Create/Columns/Name'') as c (name);
    exec <<schema_in_text>>.[check_captured_tables]
        @event = @type, @table_schema = @schema, @table_name = @table, @added = @added, @statement = @statement;
end';
    if database_principal_id(N'<<schema_text>>.guard') is null
        create user [<<schema_name>>.guard] without login;
    grant view definition to [<<schema_name>>.guard];
    grant execute on <<schema>>.[check_captured_tables] to [<<schema_name>>.guard];
    exec <<schema>>.[grant_guard];
    exec sys.sp_executesql @sql;
end
