-- Records the current rows of a captured table, in the caller's transaction, which has locked the table against writers.
-- @is_reset: 1 first records a reset, which discards all rows recorded so far, in every shard.
-- permission: internal
create or alter procedure <<schema>>.[capture_snapshot.<<table_no>>:<<name>>] (@is_reset bit)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @tid bigint = current_transaction_id(), @at datetime2(3) = dateadd(microsecond, -500, sysutcdatetime());
    declare @statement bigint = next value for <<sequence>>;
    if @is_reset = 1
    begin
        insert into <<events>> (
            changefeed_statement, changefeed_row, changefeed_image, changefeed_shard, changefeed_table, changefeed_op,
            changefeed_tid, changefeed_at)
        select
            @statement, row_number() over (order by s.shard_id), 1, s.shard_id, <<table_no>>, 't', @tid, @at
        from (
            select k.shard_id from <<schema>>.[state:<<name>>] as k
            union
            select o.shard_id from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
            union
            select a.changefeed_shard
            from <<table>> as i
            cross apply (select convert(<<shard_type>>, <<shard>>) as changefeed_shard from (select <<new_keys>>) as s) as a
        ) as s;
        insert into <<outbox>> (
            shard_id, order_sequence, time_hint, changefeed_tid, changefeed_first, changefeed_rows, changefeed_table, changefeed_balance)
        select e.changefeed_shard, @statement, @at, @tid, e.changefeed_row, 1, <<table_no>>, 0
        from <<events>> as e
        where e.changefeed_statement = @statement;
        set @statement = next value for <<sequence>>;
    end;
    insert into <<events>> (
        changefeed_statement, changefeed_row, changefeed_image, changefeed_shard, changefeed_table, changefeed_op,
        changefeed_tid, changefeed_at<<snapshot_stored>>)
    select
        @statement, row_number() over (order by <<row_order>>), 1, a.changefeed_shard, <<table_no>>, 'r',
        @tid, @at<<snapshot_values>>
    from <<table>> as i
    cross apply (select convert(<<shard_type>>, <<shard>>) as changefeed_shard from (select <<new_keys>>) as s) as a;
    -- The base count already includes these rows, so they do not change the balance.
    insert into <<outbox>> (
        shard_id, order_sequence, time_hint, changefeed_tid, changefeed_first, changefeed_rows, changefeed_table, changefeed_balance)
    select e.changefeed_shard, @statement, @at, @tid, min(e.changefeed_row), count(*), <<table_no>>, 0
    from <<events>> as e
    where e.changefeed_statement = @statement
    group by e.changefeed_shard;
end
