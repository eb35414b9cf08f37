-- Refuses servers that cannot run the objects below: SQL Server before 2017, and a database with a compatibility level below 130, which
-- lacks openjson [Microsoft: OPENJSON]. Names in procedures are resolved when called, so installation would succeed and calls fail later.
-- It tries the required features, and reports the level only if they fail: Babelfish may report any level. raiserror with noexec, because
-- throw only ends the batch: tools that continue after an error (SSMS, sqlcmd without -b) then compile the rest of the script without
-- executing it. The script's last batch, and its first one the next time, reset this.
-- errors: 77118 the server is too old, or the compatibility level is too low; nothing was installed
declare @level int, @message nvarchar(400);
if serverproperty('ProductMajorVersion') is not null
begin try
    exec sys.sp_executesql N'declare @a nvarchar(9); select @a = string_agg(j.value, N'','') within group (order by j.value) from openjson(N''["a"]'') as j;';
end try
begin catch
    -- By name, because its id in sys.databases differs on Azure SQL Database.
    select @level = d.compatibility_level from sys.databases as d where d.name = db_name();
    set @message = case
        when @level < 130 then concat(N'changefeed 77118: this database has compatibility level ', @level,
            N', and changefeed needs 130 or higher. Nothing was installed; run "alter database current set compatibility_level = 130", then this script again')
        else N'changefeed 77118: this server is too old. Nothing was installed; upgrade to SQL Server 2017 or later, or move to Azure SQL Database' end;
    raiserror(N'%s', 16, 1, @message);
    set noexec on;
end catch;
