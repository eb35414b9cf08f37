-- Fills the tokens of a template from the caller's #tokens (token, value). One pass: a value that looks like a token is not replaced again.
-- @body: the template, then the filled one.
-- permission: internal
create or alter procedure <<schema>>.[fill_template] (@body nvarchar(max) output)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @at int, @end int, @token varchar(30), @sql nvarchar(max) = N'';
    set @at = charindex(N'<' + N'<', @body);
    while @at > 0
    begin
        set @end = charindex(N'>' + N'>', @body, @at);
        set @token = substring(@body, @at + 2, @end - @at - 2);
        set @sql = @sql + substring(@body, 1, @at - 1) + (select k.value from #tokens as k where k.token = @token);
        set @body = substring(@body, @end + 2, 2147483647);
        set @at = charindex(N'<' + N'<', @body);
    end;
    set @body = @sql + @body;
end
