-- The events that consumers of a feed parked, by number.
-- @feed: null for all that the caller may read. @consumer: null for all. @is_open: 1 for those still to be consumed, 0 for all. @number: null for all.
-- result: number, feed, consumer, shard, ulid, state, attempts, reason, parked_at, parked_by, resolved_at, resolved_by, note, resource_version.
-- errors: as find_feed
-- permission: readers of the feed
create or alter procedure <<schema>>.[list_dead_letters] (
    @feed nvarchar(128) = null,
    @consumer nvarchar(128) = null,
    @is_open bit = 1,
    @number bigint = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @feed_id int, @of int;
    declare @feeds table (feed_id int not null primary key, name nvarchar(128) not null);
    -- By its number alone, so that no other dead letter, and no other feed, is waited for.
    if @number is not null
        select @of = d.feed_id, @consumer = isnull(@consumer, d.consumer)
        from <<schema>>.[dead_letters] as d with (forceseek ([unique:dead_letters.number] (number)))
        where d.number = @number;
    if @feed is null
        insert into @feeds (feed_id, name) select f.feed_id, f.name from <<schema>>.[readable_feeds] as f
        where @number is null or f.feed_id = @of;
    else
    begin
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        insert into @feeds (feed_id, name) values (@feed_id, @feed);
    end;
    select
        d.number, f.name as feed, d.consumer, d.shard, d.ulid, d.state, d.attempts, d.reason, d.parked_at, d.parked_by, d.resolved_at,
        d.resolved_by, d.note, d.resource_version
    from @feeds as f
    inner loop join <<schema>>.[dead_letters] as d with (forceseek) on d.feed_id = f.feed_id
    where (@consumer is null or d.consumer = @consumer) and (@number is null or d.number = @number)
        and (@is_open = 0 or d.state in ('parked', 'retry'))
    order by d.number
    -- Arguments that are null are left out of the plan, which then seeks by the others.
    option (recompile);
end
