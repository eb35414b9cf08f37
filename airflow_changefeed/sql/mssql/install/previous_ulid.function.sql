-- The ULID before another; the lowest one is returned unchanged.
create or alter function <<schema>>.[previous_ulid](@ulid binary(16)) returns binary(16)
with schemabinding
as
begin
    declare @high binary(8) = substring(@ulid, 1, 8), @low binary(8) = substring(@ulid, 9, 8);
    if @ulid = 0x00000000000000000000000000000000 return @ulid;
    -- T-SQL integers are signed and do not wrap.
    if @low = 0x0000000000000000 return convert(binary(8), convert(bigint, @high) - 1) + 0xffffffffffffffff;
    if @low = 0x8000000000000000 return @high + 0x7fffffffffffffff;
    return @high + convert(binary(8), convert(bigint, @low) - 1);
end
