-- The resource version of each feed, which is its capture's too.
-- fingerprint: of the columns of the event table, or of the captured tables, as they were last seen. A row stays when
-- its feed is dropped, so that no version comes again when there is another feed of that name.
create table if not exists "changefeed.feed_version" (
    feed              text    not null primary key,
    resource_version  integer not null,
    fingerprint       text    not null
) strict, without rowid;
