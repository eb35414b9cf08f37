-- The @i-th ULID of the last lock:T of a shard, for transactions that lock several.
-- @i: 0 to 10^11 - 1.
-- errors: 245, as for ulid:T
-- permission: public
create or alter function <<schema>>.[shard_ulid:<<name>>](@shard_id <<shard_type>>, @i bigint) returns binary(16)
as
begin
    declare @packed binary(24) = convert(binary(24), session_context(concat(N'changefeed.shard/<<feed_id>>/', @shard_id)));
    declare @ulid binary(16) = substring(@packed, 9, 16);
    declare @shard nvarchar(36) = <<schema>>.[shard_text](@shard_id);
    if isnull(convert(bigint, substring(@packed, 1, 8)), 0) <> current_transaction_id()
        or not exists (
            select 1 from <<schema>>.[writer_locks] as w
            where w.feed_id = <<feed_id>> and w.shard = @shard and w.transaction_id = current_transaction_id() and w.ulid = @ulid
        )
        return convert(binary(16), convert(int, 'error: shard_ulid must be called in a transaction, and after lock:T of that shard'));
    if @i is null or @i not between 0 and 99999999999
        return convert(binary(16), convert(int, 'error: shard_ulid takes 0 to 10^11 - 1'));
    return substring(@ulid, 1, 8) + convert(binary(8), convert(bigint, substring(@ulid, 9, 8)) + @i);
end
