-- What the newest look at the files of an export's output found.
-- missing: ranges that should be complete and are not. first_ms: begin of the first of them; null if none is missing.
create table if not exists "changefeed.output_check" (
    consumer       text    not null,
    feed           text    not null,
    path           text    not null,
    checked_at_ms  integer not null,
    checked_by     text    not null,
    missing        integer not null,
    first_ms       integer,
    primary key (feed, consumer)
) strict, without rowid;
