-- Draws fencing tokens: autoincrement never repeats a number, although rows are deleted. One for the whole database, so that a token of a
-- dropped consumer or feed is invalid for a new one with the same name.
create table if not exists "changefeed.lease" (
    token  integer primary key autoincrement
) strict;
