-- Consumers, one row each, without exports. settings: JSON. begin_ulid: exclusive, where later shards begin. owner: who created it; others
-- need the operators role.
if object_id(N'<<schema_in_text>>.[consumer_settings]') is null
begin
    create table <<schema>>.[consumer_settings] (
        feed_id int not null,
        consumer nvarchar(128) not null,
        settings nvarchar(max) not null,
        begin_ulid binary(16) not null,
        created_at datetime2(3) not null,
        created_by nvarchar(256) not null,
        resource_version bigint not null constraint [def:consumer_settings.resource_version] default 1,
        owner nvarchar(128) not null,
        constraint [pk:consumer_settings] primary key (feed_id, consumer) with (allow_page_locks = off)
    );
    alter table <<schema>>.[consumer_settings] set (lock_escalation = disable);
end;
-- Consumers waiting for a lease without holding one; expired rows no longer count.
if object_id(N'<<schema_in_text>>.[lease_waiters]') is null
begin
    create table <<schema>>.[lease_waiters] (
        feed_id int not null,
        consumer nvarchar(128) not null,
        waiter nvarchar(256) not null,
        since datetime2(3) not null,
        until datetime2(3) not null,
        constraint [pk:lease_waiters] primary key (feed_id, consumer, waiter) with (allow_page_locks = off)
    );
    alter table <<schema>>.[lease_waiters] set (lock_escalation = disable);
end;
-- Events that consumers parked. While one is open (parked, retry), its consumer's ack stays below it.
if object_id(N'<<schema_in_text>>.[dead_letters]') is null
begin
    create table <<schema>>.[dead_letters] (
        number bigint not null identity(1, 1),
        feed_id int not null,
        consumer nvarchar(128) not null,
        shard nvarchar(36) not null,
        ulid binary(16) not null,
        state varchar(10) not null,
        attempts int not null,
        reason nvarchar(2000) not null,
        parked_at datetime2(3) not null,
        parked_by nvarchar(256) not null,
        resolved_at datetime2(3) null,
        resolved_by nvarchar(256) null,
        note nvarchar(2000) null,
        resource_version bigint not null constraint [def:dead_letters.resource_version] default 1,
        constraint [pk:dead_letters] primary key (feed_id, consumer, number) with (allow_page_locks = off),
        constraint [unique:dead_letters.number] unique (number),
        constraint [unique:dead_letters.ulid] unique (feed_id, consumer, shard, ulid),
        constraint [check:dead_letters.state] check (state in ('parked', 'retry', 'done', 'dropped'))
    );
    alter table <<schema>>.[dead_letters] set (lock_escalation = disable);
end;
-- Each attempt of a consumer at events, until purged by age. first_ulid, last_ulid: of the events, both inclusive.
-- attempt: 1 for the first one at first_ulid.
if object_id(N'<<schema_in_text>>.[invocations]') is null
begin
    create table <<schema>>.[invocations] (
        number bigint not null identity(1, 1),
        feed_id int not null,
        consumer nvarchar(128) not null,
        shard nvarchar(36) not null,
        first_ulid binary(16) not null,
        last_ulid binary(16) not null,
        events bigint not null,
        attempt int not null,
        started_at datetime2(3) not null,
        ended_at datetime2(3) not null,
        outcome varchar(10) not null,
        error nvarchar(2000) null,
        holder nvarchar(256) not null,
        fencing_token bigint not null,
        constraint [pk:invocations] primary key (feed_id, consumer, number),
        constraint [check:invocations.outcome] check (outcome in ('consumed', 'failed', 'lost'))
    );
    alter table <<schema>>.[invocations] set (lock_escalation = disable);
end;
