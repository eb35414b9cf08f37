-- The rows of a captured table.
-- @is_exact: 1 locks the table against writers until the caller's transaction ends, and counts; 0 takes the server's own number,
--     which counts open transactions, too.
-- errors: 1222 an open transaction has changed the table; transient
-- permission: internal
create procedure <<schema>>.[capture_rows.<<table_no>>:<<name>>] (
    @is_exact bit,
    @rows bigint output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    if @is_exact = 0
    begin
        select @rows = sum(p.rows) from sys.partitions as p where p.object_id = <<object_id>> and p.index_id in (0, 1);
        return;
    end;
    -- Writers wait behind this lock, so it is not waited for long.
    set lock_timeout 2000;
    select @rows = count_big(*) from <<table>> with (tablock, holdlock);
end
