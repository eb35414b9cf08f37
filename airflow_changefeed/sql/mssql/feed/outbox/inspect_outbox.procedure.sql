-- The first waiting row in the outbox of each shard, at a cost that grows with shards, not with rows. Rows of open transactions are
-- skipped. Only draws a number from the sequence, changes nothing else.
-- result: shard_id, time_hint, age, hangs, first_sequence; shards with committed rows. time_hint, first_sequence: of the first row. age: seconds since then, by the
--     database's clock. hangs: the order_sequence of a row that no drain takes yet, because it was set explicitly, at or above the
--     sequence's current number; null without any. Then bound, one row: a number above those of all rows committed before the call.
-- permission: readers
create or alter procedure <<schema>>.[inspect_outbox:<<name>>]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @waiting table (shard_id <<shard_type>> not null primary key);
    insert into @waiting (shard_id) select w.shard_id from <<schema>>.[waiting_shards:<<name>>]() as w;
    declare @now datetime2(3) = <<schema>>.[now](), @bound bigint;
    declare @seen table (
        shard_id <<shard_type>> not null primary key, time_hint datetime2(3) null, lowest bigint null, highest bigint null);
    insert into @seen (shard_id, time_hint, lowest, highest)
    select w.shard_id, l.time_hint, l.order_sequence, h.order_sequence
    from @waiting as w
    outer apply (
        select top (1) o.time_hint, o.order_sequence
        from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
        where o.shard_id = w.shard_id
        order by o.order_sequence
    ) as l
    outer apply (
        select top (1) o.order_sequence
        from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
        where o.shard_id = w.shard_id
        order by o.order_sequence desc
    ) as h;
    -- Drawn after reading the outbox: all numbers drawn for the rows seen are below it.
    set @bound = next value for <<sequence>>;
    select
        s.shard_id,
        s.time_hint,
        datediff_big(second, s.time_hint, @now) as age,
        case when s.highest >= @bound then s.highest end as hangs,
        s.lowest as first_sequence
    from @seen as s
    where s.time_hint is not null
    order by s.shard_id;
    select @bound as bound;
end
