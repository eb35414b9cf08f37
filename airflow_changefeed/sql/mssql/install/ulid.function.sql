-- A ULID for a serialized writer, after the last lock_feed:T or lock:T of its transaction.
-- @n: after lock_feed:T, next value for <<schema>>.[sequence] (over (order by ...) for many rows of one statement);
--     after lock:T, an index, 0 to 10^11 - 1. Each lock supports only one of the two, so that no ULID is assigned twice.
-- result: the ULID. errors: 245, the only error a function can raise; its text says what is wrong.
-- Also fails if the lock was undone by a rollback to a savepoint (ADR 0005, R13): the row that lock:T wrote is then missing, or another
-- writer's. A writer never waits for its own row; if another writer has it now, this waits until that writer ends, and then finds the row
-- is not its own. If a transaction locks several feeds or shards, this returns ULIDs of the last one; use shard_ulid:T to choose the shard.
create or alter function <<schema>>.[ulid](@n bigint) returns binary(16)
as
begin
    declare @start bigint = convert(bigint, session_context(N'changefeed.sequence_start'));
    declare @offset bigint = case when @n >= 1000000000000000 then @n - @start else @n end;
    declare @feed_id int = convert(int, session_context(N'changefeed.locked_feed'));
    declare @shard nvarchar(36) = convert(nvarchar(36), session_context(N'changefeed.locked_shard'));
    declare @high binary(8) = convert(binary(8), session_context(N'changefeed.ulid_high'));
    declare @low bigint = convert(bigint, session_context(N'changefeed.ulid_low'));
    declare @ulid binary(16) = @high + convert(binary(8), @low);
    -- Without a shard, the lock was taken by mssql-changefeed v2 during the upgrade.
    if isnull(convert(bigint, session_context(N'changefeed.transaction_id')), 0) <> current_transaction_id()
        or (@shard is not null and not exists (
            select 1 from <<schema>>.[writer_locks] as w
            where w.feed_id = @feed_id and w.shard = @shard and w.transaction_id = current_transaction_id() and w.ulid = @ulid
        ))
        return convert(binary(16), convert(int, 'changefeed: call lock_feed:T or lock:T first, in this transaction'));
    if @n is null or @offset is null or @offset not between 0 and 99999999999
        return convert(binary(16), convert(int, 'changefeed: number is not of this lock: 10^11 at most, and drawn after it'));
    if (@n >= 1000000000000000 and isnull(@start, 0) = 0) or (@n < 1000000000000000 and isnull(@start, 0) <> 0)
        return convert(binary(16), convert(int, 'changefeed: lock_feed:T goes with sequence numbers, lock:T with an index'));
    return @high + convert(binary(8), @low + @offset);
end
