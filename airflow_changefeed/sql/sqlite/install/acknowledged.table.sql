-- What dropped consumers had acknowledged of each shard, (after_ulid, upto_ulid]; no range touches another one of its shard.
create table if not exists "changefeed.acknowledged" (
    feed        text  not null,
    shard       text  not null,
    after_ulid  blob  not null check (length(after_ulid) = 16),
    upto_ulid   blob  not null check (length(upto_ulid) = 16),
    primary key (feed, shard, after_ulid)
) strict, without rowid;
