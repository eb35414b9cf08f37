-- Orders the rest of a shard and raises its clock, in one transaction.
-- @until: UTC. @lock_timeout: milliseconds.
-- errors: 77101 no lock; transient, nothing was changed
-- permission: internal
create procedure <<schema>>.[seal_shard:<<name>>] (
    @shard_id <<shard_type>>,
    @until datetime2(3),
    @lock_timeout int
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @count int, @bound bigint, @more bit = 1;
        begin transaction;
        exec <<schema>>.[lock_shard:<<name>>] @shard_id = @shard_id, @lock_timeout = @lock_timeout;
        -- One bound for all pages, else fast writers would keep this one for ever.
        set @bound = next value for <<sequence>>;
        while @more = 1
            exec <<schema>>.[order_page:<<name>>]
                @shard_id = @shard_id, @bound = @bound, @pagesize = 10000, @count = @count output, @more = @more output;
        exec <<schema>>.[update_state:<<name>>] @shard_id = @shard_id, @time_hint = @until, @count = 0;
        commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
