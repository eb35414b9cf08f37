-- Plans once for a drain what it orders, in which order and in which pages: fills the caller's
-- #plan (page bigint not null, highest bigint not null, order_sequence bigint not null, primary key (page, highest, order_sequence)).
-- In the caller's transaction, under the shard's lock (lock_shard:T): no other drain removes rows meanwhile.
-- Planned rows are committed and never change, so the plan holds for all pages of the drain, each its own transaction. Between two pages
-- another drain may order part of it: whole transactions, which have then left the outbox. If the outbox records transactions they are
-- ordered whole, by the last number that each drew: one that waited for a row of another drew it after the other's commit. A transaction
-- with a row at or above the bound is left for a later drain.
-- @bound: a number drawn from the sequence; only rows below it are planned, so that scans end (R1).
-- @pagesize: events; a transaction is never split, so a page may have more. @events: total number planned.
-- Locks: S on one outbox row at a time, skipping locked ones, under either kind of read committed.
-- permission: internal
create or alter procedure <<schema>>.[plan_drain:<<name>>] (
    @shard_id <<shard_type>>,
    @bound bigint,
    @pagesize int,
    @events bigint output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @found bigint;
    create table #seen (order_sequence bigint not null primary key, tid bigint not null, events bigint not null);
    insert into #seen (order_sequence, tid, events)
    select o.order_sequence, <<transaction>>, <<events>>
    from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
    where o.shard_id = @shard_id and o.order_sequence < @bound;
    set @found = @@rowcount;

    -- A scan reads rows one at a time: a transaction that commits meanwhile may show its later rows and hide its earlier ones (R6). If
    -- transactions are recorded, one with an unscanned row is left out. This reads rows despite locks: a transaction with a visible row has
    -- committed and inserts no more, so none of its rows is missed.
    if <<knows_transactions>> = 1
        delete from #seen where tid in (
            select <<transaction>> from <<schema>>.[outbox:<<name>>] as o with (nolock, forceseek)
            where o.shard_id = @shard_id and not exists (select 1 from #seen as s where s.order_sequence = o.order_sequence));
    -- If they are not: when a scan finds no more rows than the one before, no transaction committed midway.
    while <<knows_transactions>> = 0 and @found > 0
    begin
        insert into #seen (order_sequence, tid, events)
        select o.order_sequence, <<transaction>>, <<events>>
        from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
        where o.shard_id = @shard_id and o.order_sequence < @bound
            and not exists (select 1 from #seen as s where s.order_sequence = o.order_sequence);
        set @found = @@rowcount;
    end;

    insert into #plan (page, highest, order_sequence)
    select t.page, t.highest, s.order_sequence
    from (
        select w.tid, w.highest,
            (sum(w.events) over (order by w.highest rows unbounded preceding) - w.events) / @pagesize as page
        from (
            select s.tid, max(s.order_sequence) as highest, sum(s.events) as events from #seen as s group by s.tid
        ) as w
    ) as t
    inner join #seen as s on s.tid = t.tid;
    select @events = isnull(sum(s.events), 0) from #seen as s;
end
