-- Throws if the caller may not change a consumer.
-- errors: 77135
-- permission: internal
create or alter procedure <<schema>>.[check_owner] (
    @feed_id int,
    @feed nvarchar(128),
    @consumer nvarchar(128)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @message nvarchar(2048), @owner nvarchar(128);
    -- Checks a consumer's settings, because its rows are locked while it consumes; an export has no settings.
    select @owner = s.owner from <<schema>>.[consumer_settings] as s where s.feed_id = @feed_id and s.consumer = @consumer;
    if @owner is null
        select top (1) @owner = c.owner from <<schema>>.[consumers] as c
        where c.feed_id = @feed_id and c.consumer = @consumer
        order by c.shard;
    if <<schema>>.[owns_consumer](@owner, @feed) = 0
    begin
        set @message = concat(
            N'changefeed 77135: consumer "', @consumer, N'" of feed "', @feed, N'" belongs to ', @owner, N', not to ', user_name(),
            N'; use another name, or ask for the role <<schema_text>>.operators:', @feed);
        throw 77135, @message, 1;
    end;
end
