-- One row per consumer, feed and shard, changed only by compare-and-set on resource_version.
-- start_ulid (exclusive), ulid (inclusive), ahead and before (JSON, complete ranges beyond a gap and before the start) are its frontier.
-- began: how the beginning came about: chosen, implied or accepted.
create table if not exists "changefeed.consumer" (
    consumer          text    not null,
    feed              text    not null,
    shard             text    not null,
    start_ulid        blob    not null check (length(start_ulid) = 16),
    ulid              blob    not null check (length(ulid) = 16),
    ahead             text    not null default '[]' check (json_valid(ahead)),
    before            text    not null default '[]' check (json_valid(before)),
    began             text    not null,
    ack               blob    not null check (length(ack) = 16),
    resource_version  integer not null default 1,
    moved_at_ms       integer not null,
    moved_by          text    not null,
    fencing_token       integer not null default 0,
    lease_holder      text,
    lease_expires_ms  integer,
    lease_since_ms    integer,
    primary key (feed, consumer, shard)
) strict, without rowid;
