-- Deletes the events of a shard up to a bound, with their captured rows, in batches, each in its own transaction; or counts them.
-- permission: internal
create or alter procedure <<schema>>.[purge_shard:<<name>>] (
    @shard_id <<shard_type>>,
    @upto binary(16),
    @batch_rows int,
    @dry_run bit,
    @rows bigint output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @removed bigint, @end binary(16);
        set @rows = 0;
        -- An event has up to two rows, and at 5,000 locks the server may lock the capture's table against writers.
        if @batch_rows > 2000 set @batch_rows = 2000;
        set @removed = @batch_rows;
        if @dry_run = 1
        begin
            select @rows = count_big(*) from <<schema>>.[feed:<<name>>] as f where f.shard_id = @shard_id and f.ulid <= @upto;
            return;
        end;
        while @removed = @batch_rows
        begin
            set @end = null;
            -- Not max(): not every compatible server keeps all 16 bytes.
            select top (1) @end = b.ulid
            from (
                select top (@batch_rows) f.ulid
                from <<schema>>.[feed:<<name>>] as f
                where f.shard_id = @shard_id and f.ulid <= @upto
                order by f.ulid
            ) as b
            order by b.ulid desc;
            if @end is null break;
            begin transaction;
            -- Seek by key: a scan of the table would wait for open writers.
            delete e
            from <<table>> as e with (rowlock, forceseek)
            inner join <<schema>>.[feed:<<name>>] as f on f.changefeed_statement = e.changefeed_statement and f.changefeed_row = e.changefeed_row
            where f.shard_id = @shard_id and f.ulid <= @end;
            delete from <<schema>>.[feed:<<name>>] where shard_id = @shard_id and ulid <= @end;
            set @removed = @@rowcount;
            commit;
            set @rows = @rows + @removed;
        end;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
