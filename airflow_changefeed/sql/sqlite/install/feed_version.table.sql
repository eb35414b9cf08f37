-- The resource version of each feed, shared by its capture.
-- fingerprint: of the columns of the event table, or of the captured tables, as last seen. A row stays when its feed is dropped, so that a
-- new feed with the same name never reuses a version.
create table if not exists "changefeed.feed_version" (
    feed              text    not null primary key,
    resource_version  integer not null,
    fingerprint       text    not null
) strict, without rowid;
