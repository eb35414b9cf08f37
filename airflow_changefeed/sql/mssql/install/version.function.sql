-- The installed version.
create or alter function <<schema>>.[version]() returns varchar(20)
with schemabinding
as
begin
    return '<<version>>';
end
