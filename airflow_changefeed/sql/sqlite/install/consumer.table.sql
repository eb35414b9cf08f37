-- One row per consumer, feed and shard, changed only by compare-and-set on resource_version.
-- start_ulid (exclusive), ulid (inclusive) and ahead (JSON, ranges complete beyond a gap) are its frontier.
create table if not exists "changefeed.consumer" (
    consumer          text    not null,
    feed              text    not null,
    shard             text    not null,
    start_ulid        blob    not null check (length(start_ulid) = 16),
    ulid              blob    not null check (length(ulid) = 16),
    ahead             text    not null default '[]' check (json_valid(ahead)),
    ack               blob    not null check (length(ack) = 16),
    resource_version  integer not null default 1,
    moved_at_ms       integer not null,
    moved_by          text    not null,
    fencing_token       integer not null default 0,
    lease_holder      text,
    lease_expires_ms  integer,
    primary key (feed, consumer, shard)
) strict, without rowid;
