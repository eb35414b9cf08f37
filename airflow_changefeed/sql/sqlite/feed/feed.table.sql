-- The ordered log. Without rowid: the primary key is the only index and copy.
create table if not exists <<feed>> (
    shard_id <<shard_type>> not null,
    ulid     blob not null check (length(ulid) = 16),
    <<key_definitions>>,
    primary key (shard_id, ulid)
) without rowid;
