-- The consumers of a feed and their settings, without exports.
-- @feed: null for all that the caller may read. @consumer: null for all.
-- result: feed, consumer, settings (JSON), begin_ulid, created_at, created_by, resource_version; by feed and consumer.
-- errors: as find_feed
-- permission: readers of the feed
create or alter procedure <<schema>>.[list_consumers] (@feed nvarchar(128) = null, @consumer nvarchar(128) = null)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @feed_id int;
    declare @feeds table (feed_id int not null primary key, name nvarchar(128) not null);
    if @feed is null
        insert into @feeds (feed_id, name) select f.feed_id, f.name from <<schema>>.[readable_feeds] as f;
    else
    begin
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        insert into @feeds (feed_id, name) values (@feed_id, @feed);
    end;
    select f.name as feed, s.consumer, s.settings, s.begin_ulid, s.created_at, s.created_by, s.resource_version
    from @feeds as f
    inner loop join <<schema>>.[consumer_settings] as s with (forceseek) on s.feed_id = f.feed_id
    where @consumer is null or s.consumer = @consumer
    order by f.name, s.consumer;
end
