-- Numbers transactions: one row, never deleted.
create table if not exists "changefeed.transaction_number" (
    only  integer not null primary key check (only = 0),
    last  integer not null
) strict;
