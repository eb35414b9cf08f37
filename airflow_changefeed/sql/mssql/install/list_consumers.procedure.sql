-- The feed's consumers and their settings, without exports.
-- @consumer: null for all.
-- result: feed, consumer, settings (JSON), begin_ulid, created_at, created_by, resource_version; by consumer.
-- errors: as find_feed
-- permission: readers of the feed
create procedure <<schema>>.[list_consumers] (@feed nvarchar(128), @consumer nvarchar(128) = null)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @feed_id int;
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        select @feed as feed, s.consumer, s.settings, s.begin_ulid, s.created_at, s.created_by, s.resource_version
        from <<schema>>.[consumer_settings] as s
        where s.feed_id = @feed_id and (@consumer is null or s.consumer = @consumer)
        order by s.consumer;
    end try
    begin catch
        throw;
    end catch;
end
