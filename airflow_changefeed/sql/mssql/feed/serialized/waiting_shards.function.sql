-- Serialized writers have no outbox, so nothing waits.
-- permission: internal
create or alter function <<schema>>.[waiting_shards:<<name>>]() returns table
as
return
select convert(<<shard_type>>, null) as shard_id where 1 = 0;
