-- The version of what is installed.
create function <<schema>>.[version]() returns varchar(20)
as
begin
    return '<<version>>';
end
