-- Raises a shard's high-water time and reserves numbers of its ULIDs. The lock that actually protects them is that on the state row.
-- Call feed_write_lock:T first, in the same transaction.
-- @time_hint: UTC; the high-water time becomes the later of the two. A hint in the future by more than the feed's tolerance is replaced
--     by the current time, so that one bad hint cannot push the high-water time forward permanently.
-- @count: numbers to reserve, from @next_ulid_low; 0 only raises the high-water time.
-- @previous_...: the previous high-water time and next number. @next_...: the new high-water time and the first number reserved.
-- A new shard begins at the feed's floor, which is read under a lock held to the end of the transaction, so that a seal that raises the
-- floor waits for it, or is seen (ADR 0005, R7).
-- errors: 77100 not in a transaction. 77101 a seal is raising the floor; transient
-- permission: internal
create or alter procedure <<schema>>.[update_state:<<name>>] (
    @shard_id <<shard_type>>,
    @time_hint datetime2(3),
    @count bigint,
    @previous_time datetime2(3) = null output,
    @previous_ulid_high binary(8) = null output,
    @previous_ulid_low bigint = null output,
    @next_time datetime2(3) = null output,
    @next_ulid_high binary(8) = null output,
    @next_ulid_low bigint = null output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        if @@trancount = 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure inside a transaction (update_state)', 0;

        declare @now datetime2(3), @tolerance bigint, @floor datetime2(3), @result int;
        declare @random binary(10) = crypt_gen_random(10);
        -- 62 random bits: counting on from here never reaches the end of a bigint.
        declare @random_low bigint = 1 + (convert(bigint, substring(@random, 3, 8)) & 4611686018427387903);

        set @previous_time = null;
        select
            @previous_time = s.time,
            @previous_ulid_high = s.ulid_high,
            @previous_ulid_low = s.ulid_low
        from <<schema>>.[state:<<name>>] as s with (updlock, rowlock)
        where s.shard_id = @shard_id;

        if @previous_time is null
        begin
            -- Not the row's own lock: everybody would queue behind a seal that waits for it. lock_shard:T already holds it, after waiting
            -- for its caller's lock timeout; this wait is for callers of feed_write_lock:T only.
            exec @result = sp_getapplock
                @Resource = N'changefeed/<<object_id>>/floor', @LockMode = N'Shared', @LockOwner = N'Transaction', @LockTimeout = 60000,
                @DbPrincipal = N'<<schema_text>>.users';
            if @result < 0
                throw 77101, N'changefeed 77101: feed "<<name_text>>": a seal is raising the floor. Nothing was changed; retry', 1;
            select @floor = f.floor_time from <<schema>>.[feeds] as f with (readcommittedlock) where f.feed_id = <<feed_id>>;

            set @previous_time = @floor;
            set @previous_ulid_high = convert(binary(6), datediff_big(millisecond, '1970-01-01', @floor)) + substring(@random, 1, 2);
            set @previous_ulid_low = @random_low;
            insert into <<schema>>.[state:<<name>>] (shard_id, time, ulid_high, ulid_low)
            values (@shard_id, @previous_time, @previous_ulid_high, @previous_ulid_low);
        end;

        -- Read after all waiting, which may have taken long.
        set @now = <<schema>>.[now]();
        select @tolerance = f.tolerance_ms from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>>;
        if @time_hint is null or @time_hint > dateadd(minute, @tolerance / 60000, dateadd(millisecond, @tolerance % 60000, @now)) set @time_hint = @now;
        if @time_hint > @previous_time
        begin
            set @next_time = @time_hint;
            set @next_ulid_high = convert(binary(6), datediff_big(millisecond, '1970-01-01', @next_time)) + substring(@random, 1, 2);
            set @next_ulid_low = @random_low;
        end
        else
        begin
            set @next_time = @previous_time;
            set @next_ulid_high = @previous_ulid_high;
            set @next_ulid_low = @previous_ulid_low;
        end;

        update <<schema>>.[state:<<name>>]
        set time = @next_time, ulid_high = @next_ulid_high, ulid_low = @next_ulid_low + @count
        where shard_id = @shard_id;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
