-- Refuses servers that cannot run the objects below: SQL Server before 2017, and a database with a compatibility level below 130, which
-- lacks openjson [Microsoft: OPENJSON]. Names in procedures are resolved when called, so installation would succeed and calls fail later.
-- raiserror with noexec, because throw only ends the batch: tools that continue after an error (SSMS, sqlcmd without -b) then compile the
-- rest of the script without executing it. The script's last batch, and its first one the next time, reset this.
-- errors: 77118 the server is too old, or the compatibility level is too low; nothing was installed
declare @edition int = convert(int, serverproperty('EngineEdition')), @version int = convert(int, serverproperty('ProductMajorVersion'));
declare @level int, @message nvarchar(400);
-- By name, because its id in sys.databases differs on Azure SQL Database.
select @level = d.compatibility_level from sys.databases as d where d.name = db_name();
-- Editions 1 to 4 are SQL Server; Azure SQL has other editions, and versions of its own. Old servers do not know the property.
if @edition between 1 and 4 and isnull(@version, 0) < 14
    set @message = concat(N'changefeed 77118: this server has version ', convert(nvarchar(128), serverproperty('ProductVersion')),
        N', which is too old. Nothing was installed; upgrade to SQL Server 2017 or later, or move to Azure SQL Database');
else if @level < 130
    set @message = concat(N'changefeed 77118: this database has compatibility level ', @level,
        N', and changefeed needs 130 or higher. Nothing was installed; run "alter database current set compatibility_level = 130", then this script again');
if @message is not null
begin
    raiserror(N'%s', 16, 1, @message);
    set noexec on;
end;
