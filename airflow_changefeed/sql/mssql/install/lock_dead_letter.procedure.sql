-- Locks the cursor of a dead letter's shard. Throws if the dead letter does not exist, is not open, or does not belong to the caller.
-- @consumer, @shard: of the dead letter.
-- errors: 77135, 77154
-- permission: internal
create or alter procedure <<schema>>.[lock_dead_letter] (
    @feed_id int,
    @feed nvarchar(128),
    @number bigint,
    @consumer nvarchar(128) output,
    @shard nvarchar(36) output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @message nvarchar(2048), @state varchar(10), @resolved_by nvarchar(256);
    -- By its number alone: a scan would wait for dead letters that others have locked.
    select @consumer = d.consumer, @shard = d.shard
    from <<schema>>.[dead_letters] as d with (forceseek ([unique:dead_letters.number] (number)))
    where d.number = @number and d.feed_id = @feed_id;
    if @consumer is not null exec <<schema>>.[check_owner] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer;
    -- Locks the cursor before the dead letter, in the order of a consuming transaction.
    update <<schema>>.[consumers] with (updlock, rowlock) set resource_version = resource_version
    where feed_id = @feed_id and consumer = @consumer and shard = @shard;
    update <<schema>>.[dead_letters] with (updlock, rowlock) set attempts = attempts where feed_id = @feed_id and consumer = @consumer and number = @number;
    select @state = d.state, @resolved_by = d.resolved_by from <<schema>>.[dead_letters] as d
    where d.feed_id = @feed_id and d.consumer = @consumer and d.number = @number;
    if @state is null or @state not in ('parked', 'retry')
    begin
        set @message = concat(
            N'changefeed 77154: feed "', @feed, N'": ',
            case when @state is null then concat(N'dead letter ', @number, N' not found; see list_dead_letters')
                else concat(N'dead letter ', @number, N' was already resolved as ', @state, N' by "', @resolved_by, N'"; nothing was changed') end);
        throw 77154, @message, 1;
    end;
end
