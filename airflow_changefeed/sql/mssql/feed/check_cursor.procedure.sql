-- Raises an error when nothing can be read after a cursor.
-- errors: 77104 events after it are purged. 77105 it lies beyond the shard's high-water time
-- permission: internal
create procedure <<schema>>.[check_cursor:<<name>>] (
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
