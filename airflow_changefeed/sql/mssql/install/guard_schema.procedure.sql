-- Creates or recreates the schema guard: a database trigger that refuses changes that would make writers of captured tables fail. In the
-- caller's transaction, under the set-up lock. It runs as its own user: someone altering a table may not see the captured ones, which would
-- then look dropped. Not as dbo: after a restore whose owner has no login on this server, everything that runs as dbo fails (15517), and so
-- would each alter table. A user without login cannot lose its login [Microsoft: EXECUTE AS, "Security considerations"], and cannot be
-- dropped while the trigger exists. It may see definitions and call one procedure.
-- permission: internal; needs the right to create users and database triggers
create or alter procedure <<schema>>.[guard_schema]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @sql nvarchar(max) = N'-- Refuses changes that would make writers of captured tables fail, or bypass their captures. Created by changefeed.
create or alter trigger [<<schema_name_in_text>>_captures] on database with execute as ''<<schema_text_in_text>>.guard''
for alter_table, drop_table, rename, alter_schema, alter_trigger, drop_trigger
as
begin
    set nocount on;
    exec <<schema_in_text>>.[check_captured_tables];
end';
    if database_principal_id(N'<<schema_text>>.guard') is null
        create user [<<schema_name>>.guard] without login;
    grant view definition to [<<schema_name>>.guard];
    grant execute on <<schema>>.[check_captured_tables] to [<<schema_name>>.guard];
    exec sys.sp_executesql @sql;
end
