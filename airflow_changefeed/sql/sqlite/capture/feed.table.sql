-- The ordered log of a capture.
-- changefeed_sequence: number of the event in its shard, from 1. changefeed_tid: of the transaction; null if unknown.
create table if not exists <<feed>> (
    shard_id <<shard_type>> not null,
    ulid     blob not null check (length(ulid) = 16),
    changefeed_event    integer not null,
    changefeed_sequence integer not null,
    changefeed_tid      integer,
    primary key (shard_id, ulid)
) without rowid;
