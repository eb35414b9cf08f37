-- A time plus a number of seconds, in whole milliseconds; the end of a lease.
create or alter function <<schema>>.[later](@time datetime2(3), @seconds float) returns datetime2(3)
with schemabinding
as
begin
    return dateadd(second, convert(int, floor(@seconds)),
        dateadd(millisecond, convert(int, (@seconds - floor(@seconds)) * 1000), @time));
end
