-- Moves a consumer's cursor in a shard by compare-and-set; increments its resource version.
-- May run as the last statement of the caller's transaction, so that the work and the cursor commit together. Recorded in the history.
-- @start_ulid (exclusive), @ulid (inclusive), @ahead and @before (JSON, as in the table consumers): the new frontier; without @before it
--     keeps that. @furthest: the highest ULID in it.
-- @ack: inclusive, what the consumer no longer needs; null leaves it, it never goes back. @expected_version: of the row as last read.
-- @fencing_token: the mover's lease. @by, @why: who moves it and why, as free text.
-- @is_rewind: 1 for a manual move, which may go back, with the ack, but not below what was purged. @began: how the beginning came about
--     (chosen, implied, accepted); null keeps it.
-- errors: 77104 events after it were purged. 77105 it is beyond the shard's high-water time. 77131 no such row. 77132 the row was
--     changed. 77133 the lease is not the newest, or expired; transient. 77135 the consumer belongs to another user
-- permission: readers
create or alter procedure <<schema>>.[move_cursor:<<name>>] (
    @consumer nvarchar(128),
    @shard_id <<shard_type>>,
    @start_ulid binary(16),
    @ulid binary(16),
    @ahead nvarchar(max) = N'[]',
    @furthest binary(16) = null,
    @ack binary(16) = null,
    @expected_version bigint,
    @fencing_token bigint,
    @by nvarchar(256),
    @why nvarchar(2000) = null,
    @is_rewind bit = 0,
    @before nvarchar(max) = null,
    @began varchar(10) = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end;
        declare @shard nvarchar(36) = <<schema>>.[shard_text](@shard_id), @message nvarchar(2048), @now datetime2(3);
        declare @version bigint, @token bigint, @holder nvarchar(256), @expires datetime2(3), @moved_by nvarchar(256), @beyond binary(16);
        declare @cursor binary(16), @lowest binary(16), @time datetime2(3);
        if @is_own = 1 begin transaction;
        -- A purge takes this lock too, so it sees the row either before or after this move.
        if @is_rewind = 1 select @time = s.time from <<schema>>.[state:<<name>>] as s with (updlock, rowlock) where s.shard_id = @shard_id;
        exec <<schema>>.[check_consumer] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @consumer = @consumer, @shard = @shard;
        -- After waiting for the row: a lease that expired meanwhile must not move it.
        set @now = <<schema>>.[now]();
        select @version = c.resource_version, @token = c.fencing_token, @holder = c.lease_holder, @expires = c.lease_expires, @moved_by = c.moved_by,
            @cursor = c.ulid
        from <<schema>>.[consumers] as c
        where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.shard = @shard;
        -- The lease first: its loser may retry, whatever the new holder has moved meanwhile.
        if @fencing_token is null or @token <> @fencing_token or @expires is null or @expires <= @now
        begin
            set @message = concat(
                N'changefeed 77133: lease ', @fencing_token, N' on consumer "', @consumer, N'", feed "<<name_text>>", shard ', @shard,
                N' is lost (newest lease ', @token, N', held by "', @holder, N'"): nothing was written. Acquire the lease again');
            throw 77133, @message, 1;
        end;
        if @version <> @expected_version
        begin
            set @message = concat(
                N'changefeed 77132: cursor of consumer "', @consumer, N'", feed "<<name_text>>", shard ', @shard, N' is at resource version ',
                @version, N' (', <<schema>>.[ulid_text](@cursor), N', moved by "', @moved_by, N'"), not ', @expected_version, N': nothing was changed.',
                case when @expected_version > @version then N' A version above the current one comes from another database, or from before this database was restored.' else N'' end,
                N' Read it again, then decide');
            throw 77132, @message, 1;
        end;
        set @beyond = case when @furthest is null or @ulid > @furthest then @ulid else @furthest end;
        if @ack > @beyond set @beyond = @ack;
        exec <<schema>>.[check_beyond:<<name>>] @shard_id = @shard_id, @cursor = @beyond;
        if @is_rewind = 1
        begin
            set @lowest = case when @ack < @ulid then @ack else @ulid end;
            exec <<schema>>.[check_purged:<<name>>] @shard_id = @shard_id, @after = @lowest;
        end;
        update <<schema>>.[consumers]
        set start_ulid = @start_ulid,
            ulid = @ulid,
            ahead = @ahead,
            before = isnull(@before, before),
            began = isnull(@began, began),
            ack = case
                when @ack > ack or (@is_rewind = 1 and @ack is not null) then @ack
                when @is_rewind = 1 and ack > @ulid then @ulid
                else ack end,
            resource_version = resource_version + 1,
            moved_at = @now,
            moved_by = @by
        where feed_id = <<feed_id>> and consumer = @consumer and shard = @shard;
        set @version = @version + 1;
        exec <<schema>>.[note_change]
            @feed_id = <<feed_id>>, @consumer = @consumer, @shard = @shard, @before = @cursor, @after = @ulid, @resource_version = @version, @at = @now, @by = @by, @why = @why;
        if @is_own = 1 commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
