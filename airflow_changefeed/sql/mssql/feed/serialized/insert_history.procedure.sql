-- Serialized writers keep the ULID in their own table; insert history there.
-- errors: 77120 always
-- permission: operators
create or alter procedure <<schema>>.[insert_history:<<name>>] (
    @shard_id <<shard_type>>,
    @reason nvarchar(1000),
    @lock_timeout int = 60000
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    throw 77120, N'changefeed 77120: feed "<<name_text>>" cannot take this history: its writers keep the ULID in their own table; insert the rows there, with ULIDs of their time', 1;
end
