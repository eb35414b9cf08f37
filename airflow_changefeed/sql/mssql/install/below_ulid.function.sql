-- The highest ULID before a time, floor(@time) - 1: the cursor after a complete window that ends at @time.
-- @time: UTC; 1970 and before give the start of a feed. Negative milliseconds would give one of the highest ULIDs.
create or alter function <<schema>>.[below_ulid](@time datetime2(3)) returns binary(16)
with schemabinding
as
begin
    if @time <= '1970-01-01' return 0x00000000000000000000000000000000;
    return convert(binary(6), datediff_big(millisecond, '1970-01-01', @time) - 1) + 0xffffffffffffffffffff;
end
