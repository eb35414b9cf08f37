-- Events that consumers parked. While one is open, its consumer's ack stays below it.
create table if not exists "changefeed.dead_letter" (
    number         integer primary key autoincrement,
    consumer       text    not null,
    feed           text    not null,
    shard          text    not null,
    ulid           blob    not null check (length(ulid) = 16),
    state          text    not null check (state in ('parked', 'retry', 'done', 'dropped')),
    attempts       integer not null,
    reason         text    not null,
    parked_at_ms   integer not null,
    parked_by      text    not null,
    resolved_at_ms  integer,
    resolved_by     text,
    note           text,
    resource_version integer not null default 1,
    unique (feed, consumer, shard, ulid)
) strict;
