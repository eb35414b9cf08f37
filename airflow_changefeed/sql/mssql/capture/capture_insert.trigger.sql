-- Records inserted rows for capture <<name_shown>>, in the writer's transaction. Created by changefeed; do not edit, changes are
-- overwritten.
create trigger <<trigger_schema>>.[capture_insert.<<table_no>>:<<name>>] on <<table>> after insert<<not_for_replication>>
as
begin
    set nocount on;
    -- The writer's rowcount limit would truncate what is recorded.
    set rowcount 0;
    -- A merge also fires this trigger if it inserted nothing.
    if not exists (select 1 from inserted) return;
    declare @tid bigint = current_transaction_id(), @at datetime2(3) = dateadd(microsecond, -500, sysutcdatetime());
    declare @statement bigint = next value for <<sequence>>, @rows int, @session nvarchar(max), @trace nvarchar(512);
    <<session>>
    -- A plan compiled for one row has memory to sort one row; thousands would spill to tempdb.
    if (select count(*) from (select top (201) 1 as n from inserted) as s) <= 200
    begin
<<insert_rows>>;
        set @rows = @@rowcount;
    end
    else
    begin
<<insert_rows>>
        option (recompile);
        set @rows = @@rowcount;
    end;
    if <<is_one_shard>> = 1
        insert into <<outbox>> (
            shard_id, order_sequence, time_hint, changefeed_tid, changefeed_first, changefeed_rows, changefeed_table, changefeed_balance)
        select convert(<<shard_type>>, <<constant_shard>>), @statement, @at, @tid, 1, @rows, <<table_no>>, @rows;
    else
        insert into <<outbox>> (
            shard_id, order_sequence, time_hint, changefeed_tid, changefeed_first, changefeed_rows, changefeed_table, changefeed_balance)
        select e.changefeed_shard, @statement, @at, @tid, min(e.changefeed_row), count(*), <<table_no>>, count(*)
        -- Reads only its own rows: a serializable writer would otherwise lock the end of the table, and so block every other writer.
        from <<events>> as e with (readcommittedlock)
        where e.changefeed_statement = @statement
        group by e.changefeed_shard;
end
