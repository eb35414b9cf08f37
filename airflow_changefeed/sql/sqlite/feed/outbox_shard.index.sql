-- Finds shards with waiting rows, and one shard's rows in order, at a cost that does not grow with the outbox.
create index if not exists <<outbox_shard>> on <<outbox>> (shard_id);
