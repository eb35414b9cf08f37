-- SPDX-License-Identifier: Apache-2.0
-- What a feed of mssql-changefeed v2 in blocking mode has besides. Its lock is that on the state row; the application lock
-- of the shard is taken here too, for servers that ignore updlock, where ours would not wait for that row.
create procedure [changefeed].[lock:<<name>>] (
    @shard_id int = 0,
    @time_hint datetime2(3) = null,
    @session_context bit = 1,
    @ulid_high binary(8) = null output,
    @ulid_low bigint = null output,
    @ulid binary(16) = null output
)
as
begin
    set xact_abort, nocount on;
    begin try
        if @@trancount = 0 throw 77100, 'please call inside a transaction', 0;
        if @time_hint is null set @time_hint = sysutcdatetime();
        declare @result int;
        exec [changefeed].[feed_write_lock:<<name>>] @shard_id = @shard_id, @lock_result = @result output;
        exec [changefeed].[update_state:<<name>>]
            @shard_id = @shard_id, @time_hint = @time_hint, @count = 100000000000,
            @next_ulid_high = @ulid_high output, @next_ulid_low = @ulid_low output;
        declare @transaction_id bigint;
        set @transaction_id = current_transaction_id();
        if @session_context = 1
        begin
            exec sp_set_session_context N'changefeed.transaction_id', @transaction_id;
            exec sp_set_session_context N'changefeed.ulid_high', @ulid_high;
            exec sp_set_session_context N'changefeed.ulid_low', @ulid_low;
            exec sp_set_session_context N'changefeed.transaction_id/<<name>>', @transaction_id;
            exec sp_set_session_context N'changefeed.ulid_high/<<name>>', @ulid_high;
            exec sp_set_session_context N'changefeed.ulid_low/<<name>>', @ulid_low;
        end;
        set @ulid = convert(binary(16), @ulid_high + convert(binary(8), @ulid_low));
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
go
create function [changefeed].[ulid:<<name>>](@i bigint) returns binary(16)
as
begin
    if isnull(convert(bigint, session_context(N'changefeed.transaction_id/<<name>>')), 0) <> current_transaction_id()
        return convert(binary(16), convert(int, 'error: changefeed.ulid must be called after changefeed.lock:*'));
    return convert(binary(16), convert(binary(8), session_context(N'changefeed.ulid_high/<<name>>'))
        + convert(binary(8), convert(bigint, session_context(N'changefeed.ulid_low/<<name>>')) + @i));
end
go
grant execute on [changefeed].[ulid:<<name>>] to public;
go
grant select, insert, update on [changefeed].[state:<<name>>] to [changefeed.writers:<<name>>];
go
grant execute on [changefeed].[lock:<<name>>] to [changefeed.writers:<<name>>];
