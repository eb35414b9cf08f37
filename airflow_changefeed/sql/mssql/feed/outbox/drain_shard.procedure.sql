-- Orders the committed rows of a shard's outbox, page by page, each in its own transaction.
-- @limit: rows after which to stop; null for everything committed at the start. Planning scans all waiting rows, so at least a tenth of
--     them is ordered: otherwise reading in small pages would scan everything again for each page.
-- @pagesize: rows of a transaction. @rows: rows ordered; 0 without taking a lock if none are waiting.
-- errors: 77101 lock timeout; what was ordered so far stays
-- permission: internal
create or alter procedure <<schema>>.[drain_shard:<<name>>] (
    @shard_id <<shard_type>>,
    @limit bigint = null,
    @pagesize int = 10000,
    @lock_timeout int = 60000,
    @rows bigint output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @count int, @bound bigint, @page bigint, @last bigint, @events bigint;
        set @rows = 0;
        if not exists (
            select 1 from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
            where o.shard_id = @shard_id
        ) return;
        create table #plan (page bigint not null, highest bigint not null, order_sequence bigint not null, primary key (page, highest, order_sequence));
        set @bound = next value for <<sequence>>;
        begin transaction;
        exec <<schema>>.[lock_shard:<<name>>] @shard_id = @shard_id, @lock_timeout = @lock_timeout;
        exec <<schema>>.[plan_drain:<<name>>] @shard_id = @shard_id, @bound = @bound, @pagesize = @pagesize, @events = @events output;
        commit;
        select top (1) @page = p.page from #plan as p order by p.page;
        while @page is not null
        begin
            begin transaction;
            exec <<schema>>.[lock_shard:<<name>>] @shard_id = @shard_id, @lock_timeout = @lock_timeout;
            exec <<schema>>.[order_page:<<name>>] @shard_id = @shard_id, @page = @page, @count = @count output;
            commit;
            set @rows = @rows + @count;
            if @rows >= @limit and @rows >= @events / 10 break;
            set @last = @page;
            set @page = null;
            select top (1) @page = p.page from #plan as p where p.page > @last order by p.page;
        end;
        exec <<schema>>.[flush_log];
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
