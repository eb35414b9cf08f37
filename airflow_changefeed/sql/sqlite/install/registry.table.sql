-- All feeds of this database, one row each.
-- floor_ms: no event of any shard, including shards first used later, gets a ULID below this time (ADR 0001, R7).
-- attempt: the last attempt token drawn.
create table if not exists "changefeed.registry" (
    feed            text    not null primary key,
    kind            text    not null check (kind in ('outbox', 'serialized')),
    shard_key_type  text    not null,
    tolerance_ms    integer not null check (tolerance_ms >= 0),
    floor_ms        integer not null default 0,
    attempt         integer not null default 0
) strict;
