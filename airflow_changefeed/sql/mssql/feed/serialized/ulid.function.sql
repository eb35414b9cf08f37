-- The @i-th ULID of the last lock:T of this feed, in the same transaction.
-- @i: 0 to 10^11 - 1; 0 gives the @ulid of lock:T.
-- errors: 245, the only error a function can raise: not locked in this transaction, rolled back to a savepoint before the
--     lock, an index out of range, or a lock that numbers by the sequence (lock_feed:T)
-- permission: public
create or alter function <<schema>>.[ulid:<<name>>](@i bigint) returns binary(16)
as
begin
    declare @shard nvarchar(36) = convert(nvarchar(36), session_context(N'changefeed.locked_shard/<<name_text>>'));
    declare @high binary(8) = convert(binary(8), session_context(N'changefeed.ulid_high/<<name_text>>'));
    declare @low bigint = convert(bigint, session_context(N'changefeed.ulid_low/<<name_text>>'));
    declare @ulid binary(16) = @high + convert(binary(8), @low);
    -- Without a shard, the lock was taken by mssql-changefeed v2 during the upgrade.
    if isnull(convert(bigint, session_context(N'changefeed.transaction_id/<<name_text>>')), 0) <> current_transaction_id()
        or (@shard is not null and not exists (
            select 1 from <<schema>>.[writer_locks] as w
            where w.feed_id = <<feed_id>> and w.shard = @shard and w.transaction_id = current_transaction_id() and w.ulid = @ulid
        ))
        return convert(binary(16), convert(int, 'error: changefeed.ulid must be called in a transaction, and after having called changefeed.lock:*'));
    if @i is null or @i not between 0 and 99999999999
        return convert(binary(16), convert(int, 'error: changefeed.ulid takes 0 to 10^11 - 1'));
    if isnull(convert(bigint, session_context(N'changefeed.sequence_start/<<name_text>>')), 0) <> 0
        return convert(binary(16), convert(int, 'error: after lock_feed:T use changefeed.ulid(next value for changefeed.sequence)'));
    return @high + convert(binary(8), @low + @i);
end
