-- Records another failure of a dead letter.
-- @attempts: over all retries. @reason: of the last failure.
-- result: as list_dead_letters, for this one.
-- errors: as find_feed. 77135 its consumer belongs to another user. 77154 it does not exist, or is no longer open
-- permission: readers of the feed
create or alter procedure <<schema>>.[park_again] (
    @feed nvarchar(128),
    @number bigint,
    @attempts int,
    @reason nvarchar(2000)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end, @consumer nvarchar(128), @shard nvarchar(36), @feed_id int;
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        if @is_own = 1 begin transaction;
        exec <<schema>>.[lock_dead_letter] @feed_id = @feed_id, @feed = @feed, @number = @number, @consumer = @consumer output, @shard = @shard output;
        update <<schema>>.[dead_letters]
        set state = 'parked',
            -- The log from which they are counted may have been purged meanwhile.
            attempts = case when @attempts > attempts then @attempts else attempts + 1 end,
            reason = @reason,
            resource_version = resource_version + 1
        where feed_id = @feed_id and consumer = @consumer and number = @number;
        if @is_own = 1 commit;
        exec <<schema>>.[list_dead_letters] @feed = @feed, @is_open = 0, @number = @number;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
