-- The events that a transaction recorded, written by its helper before the commit; deleted when the events are ordered.
-- There is a single writer, so a transaction's events are all those from the first to the last.
-- time_ms: their highest time hint, used for all of them.
create table if not exists "changefeed.transaction" (
    capture      text    not null,
    last_event   integer not null,
    first_event  integer not null,
    tid          integer not null,
    time_ms      integer not null,
    primary key (capture, last_event)
) strict, without rowid;
