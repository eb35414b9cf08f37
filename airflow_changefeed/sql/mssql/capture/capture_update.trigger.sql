-- Records updated rows, old and new, for capture <<name_shown>>, in the writer's transaction. Created by changefeed; do not edit, changes
-- are overwritten. Rows are paired by primary key. For a row whose key changed, records the new row only, or, with delete_insert, the old
-- key as deleted and the new one as inserted.
create trigger <<trigger_schema>>.[capture_update.<<table_no>>:<<name>>] on <<table>> after update<<not_for_replication>>
as
begin
    -- The rows of the writer's statement, in a merge those of all its actions. First of all, because other statements reset it.
    declare @affected bigint = rowcount_big();
    set nocount on;
    -- The writer's rowcount limit would truncate what is recorded.
    set rowcount 0;
    -- A merge also fires this trigger if it updated nothing.
    if not exists (select 1 from inserted) return;
    declare @tid bigint = current_transaction_id(), @at datetime2(3) = dateadd(microsecond, -500, sysutcdatetime());
    declare @statement bigint = next value for <<sequence>>, @rows int, @recorded int, @session nvarchar(max), @trace nvarchar(512);
    <<session>>
    -- A plan compiled for one row would pair many rows by scanning all of them for each.
    if (select count(*) from (select top (201) 1 as n from inserted) as s) <= 200
    begin
<<update_pairs>>;
        set @recorded = @@rowcount;
    end
    else
    begin
<<update_pairs>>
        option (recompile);
        set @recorded = @@rowcount;
    end;
    if @recorded = 0 return;
    -- Reads only its own rows: a serializable writer would otherwise lock the end of the table, and so block every other writer.
    if <<is_one_shard>> = 1 and <<is_paired>> = 1
    begin
        select top (1) @rows = e.changefeed_row
        from <<events>> as e with (readcommittedlock)
        where e.changefeed_statement = @statement
        order by e.changefeed_row desc;
        insert into <<outbox>> (
            shard_id, order_sequence, time_hint, changefeed_tid, changefeed_first, changefeed_rows, changefeed_table, changefeed_balance)
        select convert(<<shard_type>>, <<constant_shard>>), @statement, @at, @tid, 1, @rows, <<table_no>>, 0;
    end
    else
        insert into <<outbox>> (
            shard_id, order_sequence, time_hint, changefeed_tid, changefeed_first, changefeed_rows, changefeed_table, changefeed_balance)
        select
            e.changefeed_shard, @statement, @at, @tid, min(e.changefeed_row), count(*), <<table_no>>,
            sum(case e.changefeed_op when 'i' then 1 when 'd' then -1 else 0 end)
        from <<events>> as e with (readcommittedlock)
        where e.changefeed_statement = @statement and (e.changefeed_image = 1 or e.changefeed_op = 'd')
        group by e.changefeed_shard;
    -- Only delete_insert records old keys as deleted.
    if <<is_paired>> = 1 return;
    select @rows = count(*) from inserted;
<<merged_rows>>
end
