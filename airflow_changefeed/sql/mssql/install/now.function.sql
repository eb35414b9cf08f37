-- The database's clock: UTC in whole milliseconds, rounded down.
create or alter function <<schema>>.[now]() returns datetime2(3)
with schemabinding
as
begin
    return convert(datetime2(3), dateadd(microsecond, -500, sysutcdatetime()));
end
