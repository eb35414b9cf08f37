-- Events of a capture not yet ordered; order_sequence is the number of the event. No index and no constraints, which
-- every writer would pay for: the triggers raise for a shard that is none.
create table if not exists <<outbox>> (
    order_sequence integer primary key,
    shard_id  <<shard_type>>,
    time_hint integer
);
