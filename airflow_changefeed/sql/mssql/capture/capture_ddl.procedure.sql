-- Records what is not about a row of a captured table, in the caller's transaction: an event in each shard that may have events of the table.
-- @what: shards first fills the caller's #ddl_shards, before the capture's table is locked: a drain that holds a shard waits for that table.
--     record then records the events.
-- @ddl: JSON of changed columns. @op: c if columns have changed, t before the rows that are there are recorded, e behind them.
-- permission: internal; the schema guard, if the capture evolves
create or alter procedure <<schema>>.[capture_ddl.<<table_no>>:<<name>>] (
    @what varchar(10),
    @ddl nvarchar(max) = null,
    @op char(1) = 'c'
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @tid bigint = current_transaction_id(), @at datetime2(3) = dateadd(microsecond, -500, sysutcdatetime()), @statement bigint;
    if @what = 'shards'
    begin
        -- In this order, as a drain takes rows of the outbox only once its shard has a state row: each shard is found in one of the two. By
        -- shards, not by rows: writers of the captured table wait meanwhile.
        insert into #ddl_shards (shard)
        select <<schema>>.[shard_text](w.shard_id) from <<schema>>.[waiting_shards:<<name>>]() as w where <<is_one_shard>> = 0;
        insert into #ddl_shards (shard)
        select <<schema>>.[shard_text](s.shard_id)
        from (
            select convert(<<shard_type>>, <<constant_shard>>) as shard_id where <<is_one_shard>> = 1
            union
            select k.shard_id from <<schema>>.[state:<<name>>] as k with (readcommittedlock) where <<is_one_shard>> = 0
        ) as s
        where <<schema>>.[shard_text](s.shard_id) not in (select d.shard from #ddl_shards as d);
        return;
    end;
    set @statement = next value for <<sequence>>;
    insert into <<events>> (
        changefeed_statement, changefeed_row, changefeed_image, changefeed_shard, changefeed_table, changefeed_op,
        changefeed_tid, changefeed_at, changefeed_ddl)
    select
        @statement, row_number() over (order by s.shard), 1, convert(<<shard_type>>, s.shard), <<table_no>>, @op,
        @tid, @at, @ddl
    from #ddl_shards as s;
    insert into <<outbox>> (
        shard_id, order_sequence, time_hint, changefeed_tid, changefeed_first, changefeed_rows, changefeed_table, changefeed_balance)
    select e.changefeed_shard, @statement, @at, @tid, e.changefeed_row, 1, <<table_no>>, 0
    from <<events>> as e
    where e.changefeed_statement = @statement;
end
