-- Raises a shard's high-water time. Waits for open writers, which already have their ULIDs (ADR 0005, R8).
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
        begin transaction;
        exec <<schema>>.[lock_shard:<<name>>] @shard_id = @shard_id, @lock_timeout = @lock_timeout;
        exec <<schema>>.[update_state:<<name>>] @shard_id = @shard_id, @time_hint = @until, @count = 0;
        commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
