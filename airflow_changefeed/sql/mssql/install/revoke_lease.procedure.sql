-- Revokes the lease of a consumer's shard; its holder can no longer commit.
-- @fencing_token: of the lease to revoke.
-- errors: as find_feed. 77131 no such row. 77132 the lease is not the newest, or was released; nothing was changed. 77135 the consumer belongs to
--     another user
-- permission: readers of the feed
create or alter procedure <<schema>>.[revoke_lease] (
    @feed nvarchar(128),
    @consumer nvarchar(128),
    @shard nvarchar(36),
    @fencing_token bigint
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end;
        declare @message nvarchar(2048), @token bigint, @holder nvarchar(256), @feed_id int;
        set @shard = lower(@shard);
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        if @is_own = 1 begin transaction;
        exec <<schema>>.[check_consumer] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer, @shard = @shard;
        select @token = c.fencing_token, @holder = c.lease_holder from <<schema>>.[consumers] as c
        where c.feed_id = @feed_id and c.consumer = @consumer and c.shard = @shard;
        if @token <> @fencing_token or @fencing_token is null or @holder is null
        begin
            set @message = concat(
                N'changefeed 77132: lease ', @fencing_token, N' on consumer "', @consumer, N'", feed "', @feed, N'", shard ', @shard,
                N' is no longer current: the newest lease is ', @token, N', held by ',
                case when @holder is null then N'nobody' else concat(N'"', @holder, N'"') end,
                N'. Nothing was changed. Read it again, then decide');
            throw 77132, @message, 1;
        end;
        update <<schema>>.[consumers]
        set lease_holder = null, lease_expires = null, lease_since = null
        where feed_id = @feed_id and consumer = @consumer and shard = @shard and fencing_token = @fencing_token;
        if @is_own = 1 commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
