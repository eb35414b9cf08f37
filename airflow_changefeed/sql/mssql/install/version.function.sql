-- The installed version.
create function <<schema>>.[version]() returns varchar(20)
as
begin
    return '<<version>>';
end
