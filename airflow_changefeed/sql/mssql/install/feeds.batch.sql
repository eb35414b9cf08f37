-- All feeds of this database, one row each.
-- tolerance_ms: a time_hint further in the future is replaced by the current time. max_hold_ms: a purge keeps events for consumers and
-- snapshots until they are this old; -1 for as long as they are needed. floor_time: sealed until then; no event of any shard,
-- including shards first used later, gets a ULID below it (ADR 0005, R7). attempt: the last attempt token drawn.
-- sequence_name: the sequence of the outbox's order_sequence, quoted. ulid_column, shard_column: of the event table, for serialized writers
-- only; without shard_column the feed has only shard 0. resource_version: grows with each change of the settings, with an upgrade, and with
-- the columns of the table (of a capture: of its tables). schema_print: a fingerprint of those columns as last seen. upgrade_problem: why
-- upgrade_feeds failed for the feed; until it is fixed, readers refuse the feed. is_of_v2: created by mssql-changefeed v2.
if object_id(N'<<schema_in_text>>.[feeds]') is null
    create table <<schema>>.[feeds] (
        feed_id int not null identity(1, 1),
        name nvarchar(128) not null,
        object_id int not null,
        kind varchar(10) not null,
        shard_key_type varchar(16) not null,
        tolerance_ms bigint not null constraint [def:feeds.tolerance_ms] default 3600000,
        floor_time datetime2(3) not null constraint [def:feeds.floor_time] default '1970-01-01',
        attempt bigint not null constraint [def:feeds.attempt] default 0,
        sequence_name nvarchar(300) null,
        ulid_column nvarchar(128) null,
        shard_column nvarchar(128) null,
        version varchar(20) not null,
        resource_version bigint not null constraint [def:feeds.resource_version] default 1,
        schema_print varbinary(32) null,
        upgrade_problem nvarchar(2000) null,
        is_of_v2 bit not null constraint [def:feeds.is_of_v2] default 0,
        max_hold_ms bigint not null constraint [def:feeds.max_hold_ms] default -1,
        constraint [pk:feeds] primary key (feed_id),
        constraint [unique:feeds.name] unique (name),
        constraint [check:feeds.kind] check (kind in ('outbox', 'serialized')),
        constraint [check:feeds.tolerance_ms] check (tolerance_ms >= 0),
        constraint [check:feeds.max_hold_ms] check (max_hold_ms = -1 or max_hold_ms > 0)
    );
-- The last version of dropped feeds, so that a new feed with the same name never reuses one.
if object_id(N'<<schema_in_text>>.[dropped_feeds]') is null
    create table <<schema>>.[dropped_feeds] (
        name nvarchar(128) not null,
        resource_version bigint not null,
        constraint [pk:dropped_feeds] primary key (name)
    );
