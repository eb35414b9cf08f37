-- Session variables (JSON) and trace context of transactions, until their events are purged.
create table if not exists "changefeed.context" (
    capture     text    not null,
    tid         integer not null,
    last_event  integer not null,
    session     text    check (session is null or json_valid(session)),
    trace       text,
    primary key (capture, tid)
) strict, without rowid;
