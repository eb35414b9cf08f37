-- A shard as text, in tables of consumers and marks and in messages: digits, or a UUID in lower case.
create or alter function <<schema>>.[shard_text](@shard_id sql_variant) returns nvarchar(36)
with schemabinding
as
begin
    return lower(convert(nvarchar(36), @shard_id));
end
