-- Records the rows that a captured table already has, in the caller's transaction.
-- @what: reset records that they follow, in each shard that has events, and where the first row is. chunk records the next rows, in the order
--     of the primary key; without one, or if the capture does not record all of it, all rows. ready records, in each shard that has
--     events, that all have followed.
-- @rows: at most so many; then how many there were, null if the event to go on behind was purged. @statement, @row: event of the row behind which to go on, null from the beginning; then that
--     of the last row recorded. @is_last: 1 if no row is left.
-- Locks: reset waits for one row, at most two seconds. chunk takes S on the rows and on the keys between them until the caller's transaction
-- ends, so that no change of them lies between reading and recording. At most a few thousand @rows: the server does not lock the whole table for them.
-- errors: 1222 a writer holds a row; transient
-- permission: internal
create or alter procedure <<schema>>.[capture_snapshot.<<table_no>>:<<name>>] (
    @what varchar(10),
    @rows int = null output,
    @statement bigint = null output,
    @row int = null output,
    @is_last bit = null output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @tid bigint = current_transaction_id(), @at datetime2(3) = dateadd(microsecond, -500, sysutcdatetime());
    declare @op char(1) = case @what when 'reset' then 't' else 'e' end, @left int = @rows;
    if @what in ('reset', 'ready')
    begin
        create table #ddl_shards (shard nvarchar(36) collate database_default not null primary key);
        exec <<schema>>.[capture_ddl.<<table_no>>:<<name>>] @what = 'shards';
        -- So that a reset is somewhere even if nothing has been recorded.
        if @what = 'reset' set lock_timeout 2000;
        if @what = 'reset' and <<is_one_shard>> = 0
            insert into #ddl_shards (shard)
            select <<schema>>.[shard_text](a.changefeed_shard)
            from (select top (1) <<new_keys>> from <<table>> as i) as i
            cross apply (select convert(<<shard_type>>, <<shard>>) as changefeed_shard from (select <<new_keys>>) as s) as a
            where <<schema>>.[shard_text](a.changefeed_shard) not in (select d.shard from #ddl_shards as d);
        exec <<schema>>.[capture_ddl.<<table_no>>:<<name>>] @what = 'record', @op = @op;
        return;
    end;
<<chunk_keys>>
    set @statement = next value for <<sequence>>;
    insert into <<events>> (
        changefeed_statement, changefeed_row, changefeed_image, changefeed_shard, changefeed_table, changefeed_op,
        changefeed_tid, changefeed_at<<snapshot_stored>>)
    select
        @statement, row_number() over (order by <<row_order>>), 1, a.changefeed_shard, <<table_no>>, 'r',
        @tid, @at<<snapshot_values>>
    from <<chunk_rows>>
    cross apply (select convert(<<shard_type>>, <<shard>>) as changefeed_shard from (select <<new_keys>>) as s) as a;
    set @rows = @@rowcount;
    -- The base count already includes these rows, so they do not change the balance.
    insert into <<outbox>> (
        shard_id, order_sequence, time_hint, changefeed_tid, changefeed_first, changefeed_rows, changefeed_table, changefeed_balance)
    select e.changefeed_shard, @statement, @at, @tid, min(e.changefeed_row), count(*), <<table_no>>, 0
    from <<events>> as e
    where e.changefeed_statement = @statement
    group by e.changefeed_shard;
<<chunk_end>>
end
