-- Who waits for a lease without having any; a row that ran out counts no longer.
create table if not exists "changefeed.lease_waiter" (
    consumer  text    not null,
    feed      text    not null,
    waiter    text    not null,
    since_ms  integer not null,
    until_ms  integer not null,
    primary key (feed, consumer, waiter)
) strict, without rowid;
