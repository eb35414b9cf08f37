-- Writes an attempt to a consumer's log, whether or not its lease is still held. Writes nothing for a dropped consumer.
-- @first_ulid, @last_ulid: of the events, both inclusive. @attempt: 1 for the first one at @first_ulid. @outcome: consumed, failed or
-- lost. @error: why it failed.
-- errors: as find_feed. 77135 the consumer belongs to another user
-- permission: readers of the feed
create or alter procedure <<schema>>.[log_attempt] (
    @feed nvarchar(128),
    @consumer nvarchar(128),
    @shard nvarchar(36),
    @fencing_token bigint,
    @holder nvarchar(256),
    @first_ulid binary(16),
    @last_ulid binary(16),
    @events bigint,
    @attempt int,
    @started_at datetime2(3),
    @outcome varchar(10) = 'failed',
    @error nvarchar(2000) = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @feed_id int;
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        exec <<schema>>.[check_owner] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer;
        insert into <<schema>>.[invocations]
            (feed_id, consumer, shard, first_ulid, last_ulid, events, attempt, started_at, ended_at, outcome, error, holder, fencing_token)
        select
            s.feed_id, s.consumer, lower(@shard), @first_ulid, @last_ulid, @events, @attempt, @started_at, <<schema>>.[now](), @outcome,
            @error, @holder, @fencing_token
        from <<schema>>.[consumer_settings] as s
        where s.feed_id = @feed_id and s.consumer = @consumer;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
