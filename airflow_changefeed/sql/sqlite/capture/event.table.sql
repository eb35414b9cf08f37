-- The events of a capture, in recording order; created with the capture.
-- changefeed_op: i insert, u update, n update with unknown old row, d delete, r existing row, t reset, e ready, c changed columns. changefeed_at:
-- milliseconds since 1970 UTC. changefeed_ddl: JSON, of c. No constraints: a writer's "or ignore" would silently skip an event that violates one.
create table if not exists <<events>> (
    changefeed_event  integer primary key autoincrement,
    changefeed_table  integer,
    changefeed_shard  <<shard_type>>,
    changefeed_op     text,
    changefeed_at     integer,
    changefeed_ddl    text<<columns>>
);
