-- Snapshots of captured tables that have begun and not ended, one for each table; see docs/adr/0010.
-- table_name: as the capture's events have it. token: names the snapshot; path: root of its output. begin_time: the feed was sealed until then
-- before any row was read; it is not purged from there on while expires_at has not passed. where_text: of the part that it reads; empty for the
-- whole table.
if object_id(N'<<schema_in_text>>.[snapshots]') is null
begin
    create table <<schema>>.[snapshots] (
        feed_id int not null,
        table_name nvarchar(257) not null,
        token nvarchar(64) not null,
        path nvarchar(4000) not null,
        begin_time datetime2(3) not null,
        begun_by nvarchar(256) not null,
        expires_at datetime2(3) not null,
        where_text nvarchar(4000) not null,
        constraint [pk:snapshots] primary key (feed_id, table_name)
    );
    alter table <<schema>>.[snapshots] set (lock_escalation = disable);
end;
-- What a snapshot has read, and where it would be lost with what it read: a mark is committed after its range was read.
if object_id(N'<<schema_in_text>>.[snapshot_marks]') is null
begin
    create table <<schema>>.[snapshot_marks] (
        feed_id int not null,
        table_name nvarchar(257) not null,
        token nvarchar(64) not null,
        mark nvarchar(100) collate Latin1_General_BIN2 not null,
        constraint [pk:snapshot_marks] primary key (feed_id, table_name, token, mark)
    );
    alter table <<schema>>.[snapshot_marks] set (lock_escalation = disable);
end;
