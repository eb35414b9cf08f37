-- Deletes the events of a shard up to a bound, in batches, each in its own transaction; or counts them.
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
    declare @removed bigint = @batch_rows;
    set @rows = 0;
    if @dry_run = 1
    begin
        select @rows = count_big(*) from <<schema>>.[feed:<<name>>] as f where f.shard_id = @shard_id and f.ulid <= @upto;
        return;
    end;
    while @removed = @batch_rows
    begin
        delete top (@batch_rows) from <<schema>>.[feed:<<name>>] where shard_id = @shard_id and ulid <= @upto;
        set @removed = @@rowcount;
        set @rows = @rows + @removed;
    end;
end
