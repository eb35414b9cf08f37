-- The highest version of dropped consumers and their rows, so that a new consumer with the same name, even of a new feed with the same
-- name, never reuses one.
create table if not exists "changefeed.dropped_consumer" (
    feed              text    not null,
    consumer          text    not null,
    resource_version  integer not null,
    primary key (feed, consumer)
) strict, without rowid;
