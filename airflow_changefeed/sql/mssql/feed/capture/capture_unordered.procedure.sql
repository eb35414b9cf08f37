-- Adds up how many rows a captured table gained by what was recorded since its base was taken.
-- @is_dirty: 1 counts open transactions, too, as the server's own number of rows does; 0 only what is committed.
-- @rows: may be wrong by what is ordered at this moment; whoever needs it exactly asks twice.
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
    -- In this order: a drain changes the first before it takes away the second, and we wait for its end here.
    if @is_dirty = 1
        select @ordered = sum(b.rows) from <<schema>>.[balance:<<name>>] as b with (nolock) where b.table_no = @table_no;
    else
        select @ordered = sum(b.rows) from <<schema>>.[balance:<<name>>] as b with (readcommittedlock) where b.table_no = @table_no;
    -- Past open transactions, which may wait for a table that our caller has locked.
    if @is_dirty = 1
        select @waiting = sum(convert(bigint, o.changefeed_balance)) from <<schema>>.[outbox:<<name>>] as o with (nolock) where o.changefeed_table = @table_no;
    else
        select @waiting = sum(convert(bigint, o.changefeed_balance))
        from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast) where o.changefeed_table = @table_no;
    set @rows = isnull(@ordered, 0) + isnull(@waiting, 0);
end
