-- Makes the guard of captured tables, or makes it anew: a trigger of the database that refuses what would make writers of
-- captured tables fail. In the caller's transaction, under the lock of set-ups.
-- It runs as a user of its own: whoever alters some table may not see the captured ones, so in their own context those would
-- look as if they were gone. Not as dbo: after a restore whose owner has no login here, everything that runs as dbo fails
-- (15517), and so would each alter table. A user without login never loses one [Microsoft: EXECUTE AS, "Security
-- considerations"], and cannot be dropped while the trigger is there. It sees definitions, and may call one procedure.
-- permission: internal; needs the right to make users and triggers of the database
create procedure <<schema>>.[guard_schema]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @sql nvarchar(max) = N'-- Refuses what would make the writers of captured tables fail, or pass their captures. Made by changefeed.
create trigger [<<schema_name_in_text>>_captures] on database with execute as ''<<schema_text_in_text>>.guard''
for alter_table, drop_table, rename, alter_schema, alter_trigger, drop_trigger
as
begin
    set nocount on;
    exec <<schema_in_text>>.[check_captured_tables];
end';
    if database_principal_id(N'<<schema_text>>.guard') is null
        exec sys.sp_executesql N'create user [<<schema_name_in_text>>.guard] without login;';
    exec sys.sp_executesql N'grant view definition to [<<schema_name_in_text>>.guard];';
    exec sys.sp_executesql N'grant execute on <<schema_in_text>>.[check_captured_tables] to [<<schema_name_in_text>>.guard];';
    if exists (select 1 from sys.triggers as t where t.parent_class = 0 and t.name = N'<<schema_text>>_captures')
        set @sql = stuff(@sql, charindex(nchar(10) + N'create ', @sql) + 1, 6, N'alter');
    exec sys.sp_executesql @sql;
end
