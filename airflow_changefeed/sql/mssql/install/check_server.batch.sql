-- Refuses servers that lack what the objects below are written with: SQL Server before 2017.
-- errors: 77118 the server is too old
if serverproperty('ProductMajorVersion') is not null
begin try
    exec sys.sp_executesql N'declare @a nvarchar(9); select @a = string_agg(x.v, N'','') within group (order by x.v) from (values (N''a'')) as x (v);';
end try
begin catch
    throw 77118, N'changefeed 77118: this server is too old: upgrade it to SQL Server 2017 or later (with a compatibility level of the database of 110 or higher), or move to Azure SQL Database', 1;
end catch;
