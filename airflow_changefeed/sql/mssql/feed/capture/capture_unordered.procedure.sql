-- Sums up how many rows a captured table gained through changes recorded since its base count.
-- @is_dirty: 1 also counts open transactions, as the server's row count does, and may be off by what is being ordered. 0 counts exactly
--     what is committed, in the caller's transaction, for which drains then wait.
-- @newest: with 1 the order number of the last recorded statement, 0 for none.
-- Locks: with 0 S on balance:T, held; S on one outbox row at a time, skipping locked ones.
-- permission: internal
create or alter procedure <<schema>>.[capture_unordered:<<name>>] (
    @table_no smallint,
    @is_dirty bit,
    @rows bigint output,
    @newest bigint = null output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @ordered bigint, @waiting bigint;
    -- In this order: a drain updates balance before it deletes outbox rows, so the lock waits for each drain between the two steps, and
    -- none starts while it is held. One table lock, not row locks: a drain updates several rows in its own order.
    if @is_dirty = 1
        select @ordered = sum(b.rows) from <<schema>>.[balance:<<name>>] as b with (nolock) where b.table_no = @table_no;
    else
        select @ordered = sum(b.rows) from <<schema>>.[balance:<<name>>] as b with (tablock, holdlock) where b.table_no = @table_no;
    -- Skips open transactions, which may wait for a table that our caller has locked.
    if @is_dirty = 1
        select @waiting = sum(convert(bigint, o.changefeed_balance)) from <<schema>>.[outbox:<<name>>] as o with (nolock) where o.changefeed_table = @table_no;
    else
        select @waiting = sum(convert(bigint, o.changefeed_balance))
        from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast) where o.changefeed_table = @table_no;
    set @rows = isnull(@ordered, 0) + isnull(@waiting, 0);
    if @is_dirty = 1
        select @newest = isnull(max(e.changefeed_statement), 0) from <<table>> as e with (nolock);
end
