-- One row per consumer, feed and shard, changed only by compare-and-set on resource_version. Like all tables that feeds share, its clustered
-- key begins with feed_id, by which every statement seeks, and its locks do not escalate. Where rows stay locked for long, page locks are
-- off. So a feed locks no row of another.
-- start_ulid (exclusive), ulid (inclusive), ahead and before (complete ranges beyond a gap and before the start) are its frontier. The ranges
-- are JSON: an array of objects with after (exclusive) and upto (inclusive), each 32 hexadecimal digits.
-- began: how the beginning came about: chosen (somebody named the place), implied (by the first run of an export), or accepted (implied, and
-- a person accepted that the export does not have what lies before).
-- shard: decimal digits, or a UUID in lower case. owner: who created it; others need the operators role to move it.
-- lease_since: when the lease was acquired; not for exports.
if object_id(N'<<schema_in_text>>.[consumers]') is null
begin
    create table <<schema>>.[consumers] (
        feed_id int not null,
        consumer nvarchar(128) not null,
        shard nvarchar(36) not null,
        start_ulid binary(16) not null,
        ulid binary(16) not null,
        ahead nvarchar(max) not null constraint [def:consumers.ahead] default N'[]',
        before nvarchar(max) not null constraint [def:consumers.before] default N'[]',
        began varchar(10) not null,
        ack binary(16) not null,
        resource_version bigint not null constraint [def:consumers.resource_version] default 1,
        moved_at datetime2(3) not null,
        moved_by nvarchar(256) not null,
        fencing_token bigint not null constraint [def:consumers.fencing_token] default 0,
        lease_holder nvarchar(256) null,
        lease_expires datetime2(3) null,
        owner nvarchar(128) not null,
        lease_since datetime2(3) null,
        constraint [pk:consumers] primary key (feed_id, consumer, shard) with (allow_page_locks = off),
        constraint [check:consumers.began] check (began in ('chosen', 'implied', 'accepted'))
    );
    alter table <<schema>>.[consumers] set (lock_escalation = disable);
end;
-- The highest version of dropped consumers and their rows, so that a new consumer with the same name never reuses one.
if object_id(N'<<schema_in_text>>.[dropped_consumers]') is null
    create table <<schema>>.[dropped_consumers] (
        feed nvarchar(128) not null,
        consumer nvarchar(128) not null,
        resource_version bigint not null,
        constraint [pk:dropped_consumers] primary key (feed, consumer)
    );
