-- The snapshots that have begun and not ended, also those that have expired.
-- @feed: null for all that the caller may read.
-- result: feed, table_name, token, path, begin_time, begun_by, expires_at, where_text; by begin.
-- errors: as find_feed
-- permission: readers of the feed
create or alter procedure <<schema>>.[list_snapshots] (@feed nvarchar(128) = null)
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
    select f.name as feed, s.table_name, s.token, s.path, s.begin_time, s.begun_by, s.expires_at, s.where_text
    from @feeds as f
    inner loop join <<schema>>.[snapshots] as s with (forceseek) on s.feed_id = f.feed_id
    order by s.begin_time, f.name, s.table_name;
end
