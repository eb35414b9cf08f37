-- The highest version of consumers that were dropped, and of their rows: none comes again where there is another one of
-- that name, also of another feed of that name.
create table if not exists "changefeed.dropped_consumer" (
    feed              text    not null,
    consumer          text    not null,
    resource_version  integer not null,
    primary key (feed, consumer)
) strict, without rowid;
