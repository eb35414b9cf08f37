-- Whether the caller may change a consumer's rows: its owner, the feed's operators, and db_owner.
create or alter function <<schema>>.[owns_consumer](@owner nvarchar(128), @feed nvarchar(128)) returns bit
with schemabinding
as
begin
    if @owner is null or @owner = user_name() return 1;
    if is_rolemember(N'<<schema_text>>.operators:' + @feed) = 1 or is_rolemember(N'db_owner') = 1 return 1;
    return 0;
end
