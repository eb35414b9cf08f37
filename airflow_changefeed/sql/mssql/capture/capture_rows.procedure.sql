-- The rows of a captured table.
-- @how: catalog: the server's row count, which is approximate and includes open transactions. locked: the same, under a lock against
--     writers until the caller's transaction ends. dirty: counts, including open transactions. committed, versions: counts
--     what is committed and, in the same statement and so at the same moment, what was recorded (@gained); committed for a database with
--     read_committed_snapshot, versions with allow_snapshot_isolation. any: 1 if there is a row, otherwise 0.
-- Locks: catalog none, dirty only schema stability, likewise committed and versions, which read rows as of the start of the statement. any: the caller holds one.
-- locked takes S on the whole table: this waits for every open transaction that changed it, in the session's lock_timeout, and writers
-- queue behind it.
-- errors: 1222 locked: an open transaction has changed the table; transient
-- permission: internal
create or alter procedure <<schema>>.[capture_rows.<<table_no>>:<<name>>] (
    @how varchar(10),
    @rows bigint output,
    @gained bigint = null output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @one int;
    if @how = 'versions' set transaction isolation level snapshot;
    if @how in ('committed', 'versions')
        select
            @rows = (select count_big(*) from <<table>>),
            @gained = isnull((
                select sum(b.rows) from <<schema>>.[balance:<<name>>] as b where b.table_no = <<table_no>>), 0)
                + isnull((
                select sum(convert(bigint, o.changefeed_balance)) from <<schema>>.[outbox:<<name>>] as o where o.changefeed_table = <<table_no>>), 0);
    if @how = 'any'
        select @rows = case when exists (select 1 from <<table>>) then 1 else 0 end;
    if @how = 'dirty'
        select @rows = count_big(*) from <<table>> with (nolock);
    if @how = 'locked'
        select top (1) @one = 1 from <<table>> with (tablock, holdlock);
    if @how in ('catalog', 'locked')
        select @rows = sum(p.rows) from sys.partitions as p where p.object_id = <<object_id>> and p.index_id in (0, 1);
end
