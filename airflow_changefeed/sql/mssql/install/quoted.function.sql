-- A name in brackets. Like quotename, which differs on Babelfish: it doubles quotes in the name.
create function <<schema>>.[quoted](@name nvarchar(128)) returns nvarchar(258)
as
begin
    return N'[' + replace(@name, N']', N']]') + N']';
end
