-- The highest ULID before a time, floor(@time) - 1: the cursor after a complete window that ends at @time.
-- @time: UTC, after 1970.
create or alter function <<schema>>.[below_ulid](@time datetime2(3)) returns binary(16)
as
begin
    return convert(binary(6), datediff_big(millisecond, '1970-01-01', @time) - 1) + 0xffffffffffffffffffff;
end
