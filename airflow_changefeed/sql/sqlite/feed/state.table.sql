-- One row for each shard ever drained or locked.
-- time_ms: the shard's high-water time; no ULID below it will be assigned. ulid: the last one assigned.
-- purged_upto: inclusive; written before rows are deleted (ADR 0005, R12).
create table if not exists <<state>> (
    shard_id     <<shard_type>> not null primary key,
    time_ms      integer not null,
    ulid         blob    not null check (length(ulid) = 16),
    purged_upto  blob    not null default (zeroblob(16)) check (length(purged_upto) = 16)
);
