-- Orders what is committed in the outbox.
-- @shard_id: null for every shard with waiting rows. @pagesize: rows per transaction, 1 to 100000. @lock_timeout: milliseconds.
-- result: shard_id, rows; for each shard with any.
-- errors: 77100 in a transaction. 77101 lock timeout; transient, what was ordered stays. 77108 @pagesize
-- permission: operators
create or alter procedure <<schema>>.[drain_feed:<<name>>] (
    @shard_id <<shard_type>> = null,
    @pagesize int = 10000,
    @lock_timeout int = 60000
)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    -- The caller's rowcount limit would end loops early.
    set rowcount 0;
    begin try
        declare @drained table (shard_id <<shard_type>> not null, rows bigint not null);
        declare @shard <<shard_type>>, @rows bigint;
        if @@trancount > 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (drain_feed)', 0;
        if @pagesize is null or @pagesize not between 1 and 100000
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @pagesize must be 1 to 100000 rows', 1;

        declare @waiting table (shard_id <<shard_type>> not null primary key);
        if @shard_id is null insert into @waiting (shard_id) select w.shard_id from <<schema>>.[waiting_shards:<<name>>]() as w;
        else insert into @waiting (shard_id) values (@shard_id);
        select top (1) @shard = w.shard_id from @waiting as w order by w.shard_id;
        while @shard is not null
        begin
            exec <<schema>>.[drain_shard:<<name>>]
                @shard_id = @shard, @pagesize = @pagesize, @lock_timeout = @lock_timeout, @rows = @rows output;
            if @rows > 0 insert into @drained (shard_id, rows) values (@shard, @rows);
            delete from @waiting where shard_id = @shard;
            set @shard = null;
            select top (1) @shard = w.shard_id from @waiting as w order by w.shard_id;
        end;
        select d.shard_id, d.rows from @drained as d order by d.shard_id;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
