-- Each attempt of a consumer at events, until purged by age.
-- first_ulid, last_ulid: of the events, both inclusive. attempt: 1 for the first one at first_ulid.
create table if not exists "changefeed.invocation" (
    number         integer primary key autoincrement,
    consumer       text    not null,
    feed           text    not null,
    shard          text    not null,
    first_ulid     blob    not null check (length(first_ulid) = 16),
    last_ulid      blob    not null check (length(last_ulid) = 16),
    events         integer not null,
    attempt        integer not null,
    started_at_ms  integer not null,
    ended_at_ms    integer not null,
    outcome        text    not null check (outcome in ('consumed', 'failed', 'lost')),
    error          text,
    holder         text    not null,
    fencing_token    integer not null
) strict;
