-- Events of a capture not yet ordered; order_sequence is the number of the event. No index and no constraints, to keep writers fast: the
-- triggers raise for an invalid shard.
create table if not exists <<outbox>> (
    order_sequence integer primary key,
    shard_id  <<shard_type>>,
    time_hint integer
);
