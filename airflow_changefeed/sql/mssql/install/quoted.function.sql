-- A name in brackets. As quotename, of which servers that imitate SQL Server double the quotes in the name, too.
create function <<schema>>.[quoted](@name nvarchar(128)) returns nvarchar(258)
as
begin
    return N'[' + replace(@name, N']', N']]') + N']';
end
