-- The lowest ULID of a time, floor(@time); lower ULIDs are before @time. @time: UTC, not before 1970.
create or alter function <<schema>>.[floor_ulid](@time datetime2(3)) returns binary(16)
with schemabinding
as
begin
    return convert(binary(6), datediff_big(millisecond, '1970-01-01', @time)) + 0x00000000000000000000;
end
