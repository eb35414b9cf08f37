-- Draws fencing tokens: autoincrement never gives a number again, though no row stays. One for the whole database, so
-- that a token from before a consumer or feed was dropped is worth nothing in its second life.
create table if not exists "changefeed.lease" (
    token  integer primary key autoincrement
) strict;
