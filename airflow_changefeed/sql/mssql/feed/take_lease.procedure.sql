-- Acquires the lease of a consumer's shard. May run in the caller's transaction, to acquire several or none.
-- @holder: who acquires it; a holder may acquire its own again. @seconds: until it expires by the database's clock.
-- result: fencing_token, higher than every earlier one, also in @fencing_token. @cursor: the last ULID consumed.
-- errors: 77108 @seconds. 77131 no such row. 77134 another holder has it; transient. 77135 the consumer belongs to another user
-- permission: readers
create procedure <<schema>>.[take_lease:<<name>>] (
    @consumer nvarchar(128),
    @shard_id <<shard_type>>,
    @holder nvarchar(256),
    @seconds float,
    @fencing_token bigint = null output,
    @cursor binary(16) = null output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end;
        declare @shard nvarchar(36) = <<schema>>.[shard_text](@shard_id), @message nvarchar(2048);
        declare @now datetime2(3), @present nvarchar(256), @expires datetime2(3);
        if @seconds is null or @seconds <= 0 or @seconds > 31622400
            throw 77108, N'changefeed 77108: feed "<<name_text>>": a lease must last more than 0 and at most 31622400 seconds', 1;
        if @is_own = 1 begin transaction;
        exec <<schema>>.[check_consumer] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @consumer = @consumer, @shard = @shard;
        -- After waiting for the row: a lease that expired meanwhile is free, and a new one lasts from now.
        set @now = <<schema>>.[now]();
        select @present = c.lease_holder, @expires = c.lease_expires, @cursor = c.ulid from <<schema>>.[consumers] as c
        where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.shard = @shard;
        if @present <> @holder and @expires > @now
        begin
            set @message = concat(
                N'changefeed 77134: consumer "', @consumer, N'", feed "<<name_text>>", shard ', @shard, N' is leased to "', @present,
                N'" until ', convert(varchar(23), @expires, 126), N'Z; retry then');
            throw 77134, @message, 1;
        end;
        set @fencing_token = next value for <<schema>>.[fencing_token];
        update <<schema>>.[consumers]
        set fencing_token = @fencing_token,
            lease_holder = @holder,
            lease_expires = <<schema>>.[later](@now, @seconds),
            -- Not shown for exports.
            lease_since = case when exists (
                select 1 from <<schema>>.[consumer_settings] as s where s.feed_id = <<feed_id>> and s.consumer = @consumer
            ) then @now end
        where feed_id = <<feed_id>> and consumer = @consumer and shard = @shard;
        if @is_own = 1 commit;
        select @fencing_token as fencing_token;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
