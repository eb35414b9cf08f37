-- Throws if the consumer does not exist or does not belong to the caller. Keeps its settings locked, to serialize changes of its leases.
-- errors: 77135, 77151
-- permission: internal
create or alter procedure <<schema>>.[check_settings] (
    @feed_id int,
    @feed nvarchar(128),
    @consumer nvarchar(128)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @message nvarchar(2048), @owner nvarchar(128), @others nvarchar(max);
    update <<schema>>.[consumer_settings] with (updlock, rowlock) set resource_version = resource_version where feed_id = @feed_id and consumer = @consumer;
    select @owner = s.owner from <<schema>>.[consumer_settings] as s where s.feed_id = @feed_id and s.consumer = @consumer;
    if @owner is null
    begin
        select @others = string_agg(convert(nvarchar(max), concat(N'"', s.consumer, N'"')), N', ') from <<schema>>.[consumer_settings] as s where s.feed_id = @feed_id;
        set @message = concat(
            N'changefeed 77151: feed "', @feed, N'" has no consumer "', @consumer, N'"; it has ', isnull(left(@others, 1000), N'none'),
            N'. Correct the name, or create the consumer (create_consumer)');
        throw 77151, @message, 1;
    end;
    if <<schema>>.[owns_consumer](@owner, @feed) = 0 exec <<schema>>.[check_owner] @feed_id = @feed_id, @feed = @feed, @consumer = @consumer;
end
