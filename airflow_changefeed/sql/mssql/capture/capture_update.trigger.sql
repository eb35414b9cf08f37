-- Records updated rows, old and new, for capture <<name_shown>>, in the writer's transaction. Made by changefeed; changes are
-- lost. Rows are paired by their primary key. What is recorded of a row whose key was not among the changed ones before:
-- the new row alone, or, for delete_insert, the old key as deleted and the new one as inserted.
create trigger <<trigger_schema>>.[capture_update.<<table_no>>:<<name>>] on <<table>> after update
as
begin
    set nocount on;
    -- A limit of the writer's would cut what is recorded.
    set rowcount 0;
    -- A merge fires this also where it updated nothing.
    if not exists (select 1 from inserted) return;
    declare @tid bigint = current_transaction_id(), @at datetime2(3) = dateadd(microsecond, -500, sysutcdatetime());
    declare @statement bigint = next value for <<sequence>>, @rows int, @session nvarchar(max), @trace nvarchar(512);
    <<session>>
    insert into <<events>> (
        changefeed_statement, changefeed_row, changefeed_image, changefeed_shard, changefeed_table, changefeed_op,
        changefeed_tid, changefeed_at, changefeed_session, changefeed_trace<<update_stored>>)
    select
        @statement, p.changefeed_row, v.changefeed_image, p.changefeed_shard, <<table_no>>, p.changefeed_op,
        @tid, @at, @session, @trace<<image_values>>
    from (
        select
            row_number() over (order by <<pair_order>>) as changefeed_row,
            isnull(i.changefeed_shard, d.changefeed_shard) as changefeed_shard,
            <<pair_op>> as changefeed_op,
            case when i.<<first_key>> is null then 0 else 1 end as changefeed_has_new,
            case when d.<<first_key>> is null then 0 else 1 end as changefeed_has_old<<pair_values>>
        from (select s.*, convert(<<shard_type>>, <<shard>>) as changefeed_shard from inserted as s) as i
        <<pair_join>> join (select s.*, convert(<<shard_type>>, <<shard>>) as changefeed_shard from deleted as s) as d on <<same_key>>
        where <<keep_unchanged>> = 1
            or i.<<first_key>> is null
            or d.<<first_key>> is null
            -- By bytes and lengths, null for null: collations and blanks hide no change.
            or exists (select <<new_bytes>> except select <<old_bytes>>)
    ) as p
    cross apply (
        select 1 as changefeed_image<<new_image>> where p.changefeed_has_new = 1
        union all
        select 0<<old_image>> where p.changefeed_has_old = 1
    ) as v;
    if @@rowcount = 0 return;
    if <<is_one_shard>> = 1 and <<is_paired>> = 1
    begin
        select top (1) @rows = e.changefeed_row from <<events>> as e where e.changefeed_statement = @statement order by e.changefeed_row desc;
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
        from <<events>> as e
        where e.changefeed_statement = @statement and (e.changefeed_image = 1 or e.changefeed_op = 'd')
        group by e.changefeed_shard;
end
