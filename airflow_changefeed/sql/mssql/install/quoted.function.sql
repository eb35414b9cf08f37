-- A name in brackets. As quotename, which other servers that speak T-SQL do otherwise: they double quotes in the name.
create function <<schema>>.[quoted](@name nvarchar(128)) returns nvarchar(258)
as
begin
    return N'[' + replace(@name, N']', N']]') + N']';
end
