-- Snapshots of captured tables that have begun and not ended. Purges stop before begin_ms until expires_ms.
-- token: names the snapshot. path: root of its output. where_text: of the part that it reads; empty for the whole table.
create table if not exists "changefeed.snapshot" (
    capture text not null,
    table_name text not null,
    token text not null,
    path text not null,
    begin_ms integer not null,
    begun_by text not null,
    expires_ms integer not null,
    where_text text not null,
    primary key (capture, table_name)
) strict, without rowid;
