-- Upgrades a feed to this version, in place, while its writers and readers continue; also one of mssql-changefeed v2.
-- Parameters: as for setup_feed.
-- errors: as for setup_feed; 77106 the feed does not exist
-- permission: as for setup_feed
create or alter procedure <<schema>>.[upgrade_feed] (
    @table_name nvarchar(max) = null,
    @outbox bit = 0,
    @blocking bit = 0,
    @table nvarchar(max) = null,
    @serialize_writers bit = 0,
    @resource_version bigint = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @given nvarchar(max) = isnull(@table_name, @table), @serialized bit = isnull(@blocking, 0) | isnull(@serialize_writers, 0);
    exec <<schema>>.[set_up] @table_name = @given, @outbox = @outbox, @serialized = @serialized, @must_exist = 1, @resource_version = @resource_version;
end
