-- All feeds of this database, one row each.
-- floor_ms: no event of any shard, including shards first used later, gets a ULID below this time (ADR 0005, R7).
-- attempt: the last attempt token drawn.
-- max_hold_ms: a purge keeps events for consumers and snapshots until they are this old; -1 for as long as they are needed.
create table if not exists "changefeed.registry" (
    feed            text    not null primary key,
    kind            text    not null check (kind in ('outbox', 'serialized')),
    shard_key_type  text    not null,
    tolerance_ms    integer not null check (tolerance_ms >= 0),
    floor_ms        integer not null default 0,
    attempt         integer not null default 0,
    max_hold_ms     integer not null default -1
) strict;
