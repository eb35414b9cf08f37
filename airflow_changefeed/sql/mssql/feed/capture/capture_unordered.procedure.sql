-- Adds up how many rows a captured table gained by what was recorded since its base was taken.
-- @is_dirty: 1 counts open transactions, too, as the server's own number of rows does, and may be wrong by what is ordered at
--     this moment. 0 only what is committed, exactly: in the caller's transaction, which drains wait for from here on.
-- Locks: with 0 S of balance:T, kept; of the outbox S on one row after the other, passing locked ones by.
-- permission: internal
create procedure <<schema>>.[capture_unordered:<<name>>] (
    @table_no smallint,
    @is_dirty bit,
    @rows bigint output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @ordered bigint, @waiting bigint;
    -- In this order: a drain changes the first before it takes away the second, so the lock waits for each that is between the two,
    -- and none begins while it is kept. One lock, not one for each row: a drain changes several, in an order of its own.
    if @is_dirty = 1
        select @ordered = sum(b.rows) from <<schema>>.[balance:<<name>>] as b with (nolock) where b.table_no = @table_no;
    else
        select @ordered = sum(b.rows) from <<schema>>.[balance:<<name>>] as b with (tablock, holdlock) where b.table_no = @table_no;
    -- Past open transactions, which may wait for a table that our caller has locked.
    if @is_dirty = 1
        select @waiting = sum(convert(bigint, o.changefeed_balance)) from <<schema>>.[outbox:<<name>>] as o with (nolock) where o.changefeed_table = @table_no;
    else
        select @waiting = sum(convert(bigint, o.changefeed_balance))
        from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast) where o.changefeed_table = @table_no;
    set @rows = isnull(@ordered, 0) + isnull(@waiting, 0);
end
