-- The database's identity, one row; unchanged by upgrades and in copies of the file (ADR 0009).
-- id: a UUID in lower case.
create table if not exists "changefeed.database" (
    only_row  integer not null primary key check (only_row = 1),
    id        text    not null
) strict;
