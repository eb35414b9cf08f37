-- Changes a consumer's settings; a running process keeps the old ones until it is restarted. Unchanged settings do nothing.
-- @settings: as for create_consumer. @resource_version: expected version of the settings; null skips the check.
-- result: as list_consumers, for this consumer.
-- errors: as find_feed. 77108 @settings. 77135 it belongs to another user. 77151 no such consumer. 77155 it is at another
--     @resource_version; nothing was changed
-- permission: readers of the feed
create or alter procedure <<schema>>.[change_consumer] (
    @feed nvarchar(128),
    @consumer nvarchar(128),
    @settings nvarchar(max),
    @resource_version bigint = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end, @message nvarchar(2048), @present nvarchar(max), @version bigint, @feed_id int;
        exec <<schema>>.[find_feed] @feed = @feed output, @feed_id = @feed_id output;
        if isnull(isjson(@settings), 0) = 0
        begin
            set @message = concat(N'changefeed 77108: feed "', @feed, N'": @settings must be JSON');
            throw 77108, @message, 1;
        end;
        if @is_own = 1 begin transaction;
        exec <<schema>>.[check_settings] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer;
        select @present = s.settings, @version = s.resource_version from <<schema>>.[consumer_settings] as s
        where s.feed_id = @feed_id and s.consumer = @consumer;
        if @version <> @resource_version
        begin
            set @message = concat(
                N'changefeed 77155: consumer "', @consumer, N'" of feed "', @feed, N'" is at resource version ', @version, N' (settings ', left(@present, 500),
                N'), not ', @resource_version, N': nothing was changed.',
                case when @resource_version > @version then N' A version above the current one comes from another database, or from before this database was restored.' else N'' end,
                N' Read it again, then decide');
            throw 77155, @message, 1;
        end;
        if @present <> @settings
            update <<schema>>.[consumer_settings]
            set settings = @settings, resource_version = resource_version + 1
            where feed_id = @feed_id and consumer = @consumer;
        if @is_own = 1 commit;
        exec <<schema>>.[list_consumers] @feed = @feed, @consumer = @consumer;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
