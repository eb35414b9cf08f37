-- Orders the rest of a shard and raises its high-water time, in one transaction.
-- @until: UTC. @lock_timeout: milliseconds.
-- errors: 77101 lock timeout; transient, nothing was changed
-- permission: internal
create or alter procedure <<schema>>.[seal_shard:<<name>>] (
    @shard_id <<shard_type>>,
    @until datetime2(3),
    @lock_timeout int
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @count int, @bound bigint, @page bigint, @last bigint, @events bigint;
        create table #plan (page bigint not null, highest bigint not null, order_sequence bigint not null, primary key (page, highest, order_sequence));
        begin transaction;
        exec <<schema>>.[lock_shard:<<name>>] @shard_id = @shard_id, @lock_timeout = @lock_timeout;
        set @bound = next value for <<sequence>>;
        exec <<schema>>.[plan_drain:<<name>>] @shard_id = @shard_id, @bound = @bound, @pagesize = 10000, @events = @events output;
        select top (1) @page = p.page from #plan as p order by p.page;
        while @page is not null
        begin
            exec <<schema>>.[order_page:<<name>>] @shard_id = @shard_id, @page = @page, @count = @count output;
            set @last = @page;
            set @page = null;
            select top (1) @page = p.page from #plan as p where p.page > @last order by p.page;
        end;
        exec <<schema>>.[update_state:<<name>>] @shard_id = @shard_id, @time_hint = @until, @count = 0;
        commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
