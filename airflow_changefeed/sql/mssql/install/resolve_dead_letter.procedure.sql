-- Marks a dead letter to be retried (retry), parked again (parked) or discarded (dropped). When discarded, the consumer's ack moves on to
-- the next open one, or the cursor.
-- @by, @note: who resolves it, and why. @resource_version: expected version of the dead letter; null skips the check.
-- result: as list_dead_letters, for this one.
-- errors: as find_feed. 77108 @state. 77135 its consumer belongs to another user. 77154 it does not exist, or is no longer open. 77155 it is
--     at another @resource_version; nothing was changed
-- permission: readers of the feed
create or alter procedure <<schema>>.[resolve_dead_letter] (
    @feed nvarchar(128),
    @number bigint,
    @state varchar(10),
    @by nvarchar(256),
    @note nvarchar(2000) = null,
    @resource_version bigint = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end, @consumer nvarchar(128), @shard nvarchar(36), @open binary(16), @feed_id int, @message nvarchar(2048), @version bigint, @present nvarchar(100);
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        if @state is null or @state not in ('retry', 'parked', 'dropped', 'done')
        begin
            set @message = concat(N'changefeed 77108: feed "', @feed, N'": @state must be retry, parked, dropped or done');
            throw 77108, @message, 1;
        end;
        if @is_own = 1 begin transaction;
        exec <<schema>>.[lock_dead_letter] @feed_id = @feed_id, @feed = @feed, @number = @number, @consumer = @consumer output, @shard = @shard output;
        select @version = d.resource_version, @present = concat(d.state, N', attempts: ', d.attempts) from <<schema>>.[dead_letters] as d
        where d.feed_id = @feed_id and d.consumer = @consumer and d.number = @number;
        if @version <> @resource_version
        begin
            set @message = concat(
                N'changefeed 77155: dead letter ', @number, N' of consumer "', @consumer, N'", feed "', @feed, N'" is at resource version ', @version, N' (', @present, N'), not ',
                @resource_version, N': nothing was changed.',
                case when @resource_version > @version then N' A version above the current one comes from another database, or from before this database was restored.' else N'' end,
                N' Read it again, then decide');
            throw 77155, @message, 1;
        end;
        if @state in ('retry', 'parked')
            update <<schema>>.[dead_letters] set state = @state, resource_version = resource_version + 1 where feed_id = @feed_id and consumer = @consumer and number = @number;
        else
        begin
            update <<schema>>.[dead_letters] set state = @state, resolved_at = <<schema>>.[now](), resolved_by = @by, note = @note, resource_version = resource_version + 1
            where feed_id = @feed_id and consumer = @consumer and number = @number;
            select top (1) @open = d.ulid from <<schema>>.[dead_letters] as d
            where d.feed_id = @feed_id and d.consumer = @consumer and d.shard = @shard and d.state in ('parked', 'retry')
            order by d.ulid;
            set @open = <<schema>>.[previous_ulid](@open);
            -- The row's version stays the same: the cursor did not move for a consumer running meanwhile.
            update <<schema>>.[consumers] set ack = case when @open is null or @open > ulid then ulid else @open end
            where feed_id = @feed_id and consumer = @consumer and shard = @shard and (ack < @open or (@open is null and ack < ulid));
        end;
        if @is_own = 1 commit;
        exec <<schema>>.[list_dead_letters] @feed = @feed, @is_open = 0, @number = @number;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
