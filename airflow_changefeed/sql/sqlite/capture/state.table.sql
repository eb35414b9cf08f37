-- One row for each shard of a capture ever drained; as for other feeds.
-- sequence: of the last event.
create table if not exists <<state>> (
    shard_id     <<shard_type>> not null primary key,
    time_ms      integer not null,
    ulid         blob    not null check (length(ulid) = 16),
    purged_upto  blob    not null default (zeroblob(16)) check (length(purged_upto) = 16),
    sequence     integer not null default 0
);
