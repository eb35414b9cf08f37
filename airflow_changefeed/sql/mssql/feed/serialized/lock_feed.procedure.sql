-- lock:T for writers that number their rows with the sequence:
-- <<schema>>.[ulid](next value for <<schema>>.[sequence]), or with over (order by ...) for the many rows of one statement.
-- Parameters, errors (also 77100) and permission are those of lock:T; @ulid is an additional ULID, below all those from the sequence.
create or alter procedure <<schema>>.[lock_feed:<<name>>] (
    @shard_id <<shard_type>> <<shard_parameter_default>>,
    @time_hint datetime2(3) = null,
    @ulid_high binary(8) = null output,
    @ulid_low bigint = null output,
    @ulid binary(16) = null output,
    @lock_timeout int = 60000
)
as
begin
    set xact_abort, nocount on;
    -- The writer's own level: the row shows that of a procedure as soon as it is set.
    if (select s.transaction_isolation_level from sys.dm_exec_sessions as s where s.session_id = @@spid) = 5
        throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of the isolation level SNAPSHOT: the writer''s next statement may fail (3951). Run "set transaction isolation level read committed", then begin the transaction again', 0;
    set transaction isolation level read committed;
    begin try
        declare @start bigint;
        exec <<schema>>.[lock:<<name>>]
            @shard_id = @shard_id,
            @time_hint = @time_hint,
            @ulid_high = @ulid_high output,
            @ulid_low = @ulid_low output,
            @ulid = @ulid output,
            @lock_timeout = @lock_timeout;
        -- Numbers drawn from now on are above it, so the first one gives the ULID after @ulid.
        set @start = next value for <<schema>>.[sequence];
        exec sp_set_session_context N'changefeed.sequence_start', @start;
        exec sp_set_session_context N'changefeed.sequence_start/<<name_text>>', @start;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
