-- Creates a feed over a table, using the table's primary key. Idempotent; upgrades an existing feed to this version.
-- @table_name, or @table: the event table, with its schema. @outbox = 1, or @blocking = 1 (@serialize_writers = 1): how it
--     is written. @shard_key_type: int (default), bigint, smallint, tinyint or uniqueidentifier. @time_tolerance_ms: a time_hint further in
--     the future is replaced by the current time; default 3600000. @ulid_column, @shard_column: of the event table, for serialized writers,
--     if not named ulid and shard or shard_id. @resource_version: expected version of the feed; null skips the check. @max_hold_ms: a purge
--     keeps events for consumers and snapshots until they are this old; default -1, for as long as they are needed. Null keeps the
--     present settings of an existing feed, also of the feed of a capture. @filegroup: for the tables of a new outbox feed; default that
--     of the database. @compression: of its log: page (default), row or none. An existing feed stays as it is stored.
-- errors: 55000 arguments. 71000 table not found. 77101 another set-up is running. 77110 to 77119: see "Errors" in the docs. 77155 the
--     feed is at another @resource_version, or does not exist; nothing was changed
-- permission: to create tables, procedures and roles in the schema
create or alter procedure <<schema>>.[setup_feed] (
    @table_name nvarchar(max) = null,
    @outbox bit = 0,
    @blocking bit = 0,
    @table nvarchar(max) = null,
    @serialize_writers bit = 0,
    @shard_key_type sysname = null,
    @time_tolerance_ms bigint = null,
    @ulid_column sysname = null,
    @shard_column sysname = null,
    @resource_version bigint = null,
    @max_hold_ms bigint = null,
    @filegroup sysname = null,
    @compression sysname = null
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @given nvarchar(max) = isnull(@table_name, @table), @serialized bit = isnull(@blocking, 0) | isnull(@serialize_writers, 0);
    exec <<schema>>.[set_up]
        @table_name = @given, @outbox = @outbox, @serialized = @serialized, @shard_key_type = @shard_key_type,
        @time_tolerance_ms = @time_tolerance_ms, @ulid_column = @ulid_column, @shard_column = @shard_column, @must_exist = 0,
        @resource_version = @resource_version, @max_hold_ms = @max_hold_ms,
        @filegroup = @filegroup, @compression = @compression;
end
