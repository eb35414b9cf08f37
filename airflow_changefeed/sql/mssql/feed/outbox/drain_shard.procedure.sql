-- Orders what is committed in a shard's outbox, page by page, each in a transaction of its own.
-- @limit: rows after which to stop; null takes all that was committed when this began.
-- @pagesize: rows of a transaction. @rows: rows ordered; 0 without taking a lock when none wait.
-- errors: 77101 no lock; what was ordered until then stays
-- permission: internal
create procedure <<schema>>.[drain_shard:<<name>>] (
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
        declare @count int, @bound bigint, @more bit;
        set @rows = 0;
        if not exists (
            select 1 from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
            where o.shard_id = @shard_id
        ) return;
        set @bound = next value for <<sequence>>;
        while 1 = 1
        begin
            begin transaction;
            exec <<schema>>.[lock_shard:<<name>>] @shard_id = @shard_id, @lock_timeout = @lock_timeout;
            exec <<schema>>.[order_page:<<name>>]
                @shard_id = @shard_id, @bound = @bound, @pagesize = @pagesize, @count = @count output, @more = @more output;
            commit;
            set @rows = @rows + @count;
            if @more = 0 or @rows >= @limit break;
        end;
        exec <<schema>>.[flush_log];
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
