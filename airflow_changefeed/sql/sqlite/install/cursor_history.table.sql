-- Changes of cursors, except the steps of consumers: the newest of each row.
-- before_ulid: null when the row was created. resource_version: of the row, after the change.
create table if not exists "changefeed.cursor_history" (
    number            integer primary key autoincrement,
    consumer          text    not null,
    feed              text    not null,
    shard             text    not null,
    before_ulid       blob    check (length(before_ulid) = 16),
    after_ulid        blob    not null check (length(after_ulid) = 16),
    resource_version  integer not null,
    moved_at_ms       integer not null,
    moved_by          text    not null,
    why               text
) strict;
