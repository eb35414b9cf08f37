-- Locks a shard against other writers until this transaction ends, and reserves 10^11 of its ULIDs, all with the same time.
-- @time_hint: UTC, the desired time of the ULIDs; null for the current time. The actual time never goes back.
-- @session_context: 1 also sets the session context read by ulid:T(@i), shard_ulid:T(@shard_id, @i) and ulid(@n); 0 leaves it.
-- @ulid_high, @ulid_low, @ulid: the first ULID, in parts and whole. The i-th is @ulid_high + convert(binary(8), @ulid_low + i);
--     if you count this way, do not roll back to a savepoint before the lock and continue counting (ADR 0005, R13).
-- @lock_timeout: milliseconds, -1 waits forever.
-- errors: 77100 not in a transaction, or under SNAPSHOT, where the transaction would begin here, as read committed. 77101 another writer or a seal holds the shard; transient
-- permission: writers
create or alter procedure <<schema>>.[lock:<<name>>] (
    @shard_id <<shard_type>> <<shard_parameter_default>>,
    @time_hint datetime2(3) = null,
    @session_context bit = 1,
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
        declare @transaction_id bigint, @shard nvarchar(36), @key nvarchar(128), @packed varbinary(40), @listed nvarchar(4000);
        if @@trancount = 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure inside a transaction (lock)', 0;
        exec <<schema>>.[lock_shard:<<name>>] @shard_id = @shard_id, @lock_timeout = @lock_timeout;
        exec <<schema>>.[update_state:<<name>>]
            @shard_id = @shard_id,
            @time_hint = @time_hint,
            @count = 100000000000,
            @next_ulid_high = @ulid_high output,
            @next_ulid_low = @ulid_low output;
        set @ulid = @ulid_high + convert(binary(8), @ulid_low);
        if @session_context = 1
        begin
            -- The reservation, as a row: a rollback to a savepoint undoes both, and the functions then fail (R13).
            set @transaction_id = current_transaction_id();
            set @shard = <<schema>>.[shard_text](@shard_id);
            update <<schema>>.[writer_locks] with (rowlock) set transaction_id = @transaction_id, ulid = @ulid
            where feed_id = <<feed_id>> and shard = @shard;
            if @@rowcount = 0
                insert into <<schema>>.[writer_locks] (feed_id, shard, transaction_id, ulid)
                values (<<feed_id>>, @shard, @transaction_id, @ulid);
            -- For ulid(@n); by feed name, for ulid:T(@i); and by shard, so that another shard of this transaction does not overwrite it.
            exec sp_set_session_context N'changefeed.transaction_id', @transaction_id;
            exec sp_set_session_context N'changefeed.ulid_high', @ulid_high;
            exec sp_set_session_context N'changefeed.ulid_low', @ulid_low;
            exec sp_set_session_context N'changefeed.locked_feed', <<feed_id>>;
            exec sp_set_session_context N'changefeed.locked_shard', @shard;
            exec sp_set_session_context N'changefeed.sequence_start', null;
            -- Clears what earlier transactions set for their shards: a session context holds 1 MB.
            set @listed = isnull(convert(nvarchar(4000), session_context(N'changefeed.shards/<<name_text>>')), N'');
            if isnull(convert(bigint, session_context(N'changefeed.transaction_id/<<name_text>>')), 0) <> @transaction_id
                while @listed <> N''
                begin
                    set @key = substring(@listed, 1, charindex(N';', @listed) - 1);
                    exec sp_set_session_context @key, null;
                    set @listed = substring(@listed, charindex(N';', @listed) + 1, 4000);
                end;
            exec sp_set_session_context N'changefeed.transaction_id/<<name_text>>', @transaction_id;
            exec sp_set_session_context N'changefeed.ulid_high/<<name_text>>', @ulid_high;
            exec sp_set_session_context N'changefeed.ulid_low/<<name_text>>', @ulid_low;
            exec sp_set_session_context N'changefeed.locked_shard/<<name_text>>', @shard;
            exec sp_set_session_context N'changefeed.sequence_start/<<name_text>>', null;
            set @key = concat(N'changefeed.shard/<<feed_id>>/', @shard_id);
            set @packed = convert(binary(8), @transaction_id) + @ulid;
            exec sp_set_session_context @key, @packed;
            -- If one transaction locks more shards than the list holds, the rest stays until the connection ends.
            if charindex(@key + N';', @listed) = 0 and len(@listed) < 3900
            begin
                set @listed = concat(@listed, @key, N';');
                exec sp_set_session_context N'changefeed.shards/<<name_text>>', @listed;
            end;
        end;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
