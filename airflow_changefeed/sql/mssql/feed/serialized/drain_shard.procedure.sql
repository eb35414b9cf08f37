-- Serialized writers have no outbox, so there is nothing to order.
-- permission: internal
create or alter procedure <<schema>>.[drain_shard:<<name>>] (
    @shard_id <<shard_type>>,
    @limit bigint = null,
    @pagesize int = 10000,
    @lock_timeout int = 60000,
    @rows bigint output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set @rows = 0;
end
