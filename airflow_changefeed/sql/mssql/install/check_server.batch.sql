-- Refuses what cannot run the objects below: SQL Server before 2017, and a database of a compatibility level below 130, where
-- the server does not find openjson [Microsoft: OPENJSON]. Names in procedures are resolved when they are called, so all would
-- be made without an error, and fail later.
-- It tries what is needed, and says the level only where that failed: a server that is merely compatible may report any.
-- raiserror, as throw would end the batch: tools that go on after an error (SSMS, sqlcmd without -b) then compile the rest of
-- the script and execute none of it. The script's last batch, and its first one the next time, end that.
-- errors: 77118 the server is too old, or the compatibility level is too low; nothing was installed
declare @level int, @message nvarchar(400);
if serverproperty('ProductMajorVersion') is not null
begin try
    exec sys.sp_executesql N'declare @a nvarchar(9); select @a = string_agg(j.value, N'','') within group (order by j.value) from openjson(N''["a"]'') as j;';
end try
begin catch
    -- By its name: its number in sys.databases is another one on Azure SQL Database.
    select @level = d.compatibility_level from sys.databases as d where d.name = db_name();
    set @message = case
        when @level < 130 then concat(N'changefeed 77118: this database has compatibility level ', @level,
            N', and changefeed needs 130 or higher. Nothing was installed; run "alter database current set compatibility_level = 130", then this script again')
        else N'changefeed 77118: this server is too old. Nothing was installed; upgrade to SQL Server 2017 or later, or move to Azure SQL Database' end;
    raiserror(N'%s', 16, 1, @message);
    set noexec on;
end catch;
