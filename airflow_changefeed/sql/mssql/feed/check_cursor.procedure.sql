-- Throws if reading cannot start after a cursor.
-- errors: 77104 events after it were purged. 77105 it is beyond the shard's high-water time
-- permission: internal
create or alter procedure <<schema>>.[check_cursor:<<name>>] (
    @shard_id <<shard_type>>,
    @cursor binary(16)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    exec <<schema>>.[check_purged:<<name>>] @shard_id = @shard_id, @after = @cursor;
    exec <<schema>>.[check_beyond:<<name>>] @shard_id = @shard_id, @cursor = @cursor;
end
