-- Serialized writers have no outbox, so nothing waits.
-- permission: internal
create or alter function <<schema>>.[waiting_rows:<<name>>](@shard_id <<shard_type>>) returns table
as
return
select convert(bigint, 0) as waiting, convert(datetime2(3), null) as waiting_since;
