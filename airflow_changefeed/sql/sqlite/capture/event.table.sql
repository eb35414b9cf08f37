-- The events of a capture, in the order in which they were recorded; made with the capture.
-- changefeed_op: i insert, u update, n update of which the old row is not known, d delete, r a row that was there,
-- t reset. changefeed_at: milliseconds since 1970 UTC. No constraints: a writer's "or ignore" would skip an event
-- that fails one, without a word.
create table if not exists <<events>> (
    changefeed_event  integer primary key autoincrement,
    changefeed_table  integer,
    changefeed_shard  <<shard_type>>,
    changefeed_op     text,
    changefeed_at     integer<<columns>>
);
