-- Inserted history in windows that may already be exported; number grows and is never reused.
create table if not exists "changefeed.stale" (
    number      integer primary key autoincrement,
    feed        text    not null,
    shard       text    not null,
    after_ulid  blob    not null check (length(after_ulid) = 16),
    upto_ulid   blob    not null check (length(upto_ulid) = 16),
    at_ms       integer not null,
    reason      text    not null
) strict;
