-- Consumers, one row each, without exports.
-- settings: JSON. begin_ulid: exclusive, where later shards begin.
create table if not exists "changefeed.consumer_settings" (
    consumer          text    not null,
    feed              text    not null,
    settings          text    not null check (json_valid(settings)),
    begin_ulid        blob    not null check (length(begin_ulid) = 16),
    created_at_ms     integer not null,
    created_by        text    not null,
    resource_version  integer not null default 1,
    primary key (feed, consumer)
) strict, without rowid;
