-- Consumers waiting for a lease without holding one; expired rows no longer count.
create table if not exists "changefeed.lease_waiter" (
    consumer  text    not null,
    feed      text    not null,
    waiter    text    not null,
    since_ms  integer not null,
    until_ms  integer not null,
    primary key (feed, consumer, waiter)
) strict, without rowid;
