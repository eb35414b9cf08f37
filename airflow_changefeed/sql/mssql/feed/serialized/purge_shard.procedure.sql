-- The events of serialized writers are the user's own rows; nothing is deleted.
-- permission: internal
create or alter procedure <<schema>>.[purge_shard:<<name>>] (
    @shard_id <<shard_type>>,
    @upto binary(16),
    @batch_rows int,
    @dry_run bit,
    @rows bigint output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set @rows = 0;
end
