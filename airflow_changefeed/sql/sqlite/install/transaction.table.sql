-- Which events a transaction recorded, as its helper wrote before it committed; gone when the events are ordered.
-- One writer at a time, so the events of a transaction are all those from the first to the last.
-- time_ms: the highest time hint of them, which all of them take.
create table if not exists "changefeed.transaction" (
    capture      text    not null,
    last_event   integer not null,
    first_event  integer not null,
    tid          integer not null,
    time_ms      integer not null,
    primary key (capture, last_event)
) strict, without rowid;
