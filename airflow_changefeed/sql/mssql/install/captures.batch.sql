-- All captures of this database. A capture is the feed with the same name.
-- key_change: new_only or delete_insert. session_keys: JSON array of names. is_changing: its own procedures are running, so the schema
-- guard ignores them; never committed as 1. version: of the package that created its triggers. disabled_at: when it was last disabled.
-- on_ddl: what a change of a table's columns does: pause, evolve or refuse. has_ddl: such a change was recorded. not_for_replication: the
-- triggers do not fire for changes that a replication agent makes.
if object_id(N'<<schema_in_text>>.[captures]') is null
    create table <<schema>>.[captures] (
        capture_id int not null identity(1, 1),
        feed_id int null,
        name nvarchar(128) not null,
        key_change varchar(15) not null,
        keep_unchanged bit not null,
        session_keys nvarchar(max) not null,
        trace_key nvarchar(128) null,
        with_sequence bit not null,
        guard_table bit not null,
        guard_schema bit not null,
        is_enabled bit not null,
        is_changing bit not null,
        enabled_at datetime2(3) not null,
        disabled_at datetime2(3) null,
        version varchar(20) not null constraint [def:captures.version] default '',
        on_ddl varchar(10) not null constraint [def:captures.on_ddl] default 'pause',
        has_ddl bit not null constraint [def:captures.has_ddl] default 0,
        not_for_replication bit not null constraint [def:captures.not_for_replication] default 0,
        constraint [pk:captures] primary key (capture_id),
        constraint [unique:captures.name] unique (name),
        constraint [check:captures.key_change] check (key_change in ('new_only', 'delete_insert')),
        constraint [check:captures.on_ddl] check (on_ddl in ('pause', 'evolve', 'refuse'))
    );
-- insert_columns, update_columns, delete_columns: as requested; null does not capture the operation, '[]' captures all columns, otherwise a
-- JSON array. shard: T-SQL over the key columns. is_whole: the events cover all rows the table ever had. base_rows: rows of the table minus
-- the recorded balance, as counted; null until they are. base_catalog: likewise by the server's own number, which may be off; null if the
-- balance is not recorded. trigger_count and trigger_modified: as created, to detect changes. recorded_columns: JSON array of
-- each stored_name that it had before; columns_upto: the greatest column_id when its columns were last captured. unrecorded_at: when
-- columns were last captured whose values in older rows no event has.
if object_id(N'<<schema_in_text>>.[capture_tables]') is null
    create table <<schema>>.[capture_tables] (
        capture_id int not null,
        table_no smallint not null,
        object_id int not null,
        table_schema nvarchar(128) not null,
        table_name nvarchar(128) not null,
        shard nvarchar(max) not null,
        insert_columns nvarchar(max) null,
        update_columns nvarchar(max) null,
        delete_columns nvarchar(max) null,
        is_whole bit not null,
        base_rows bigint null,
        base_catalog bigint null,
        guard_name nvarchar(128) null,
        trigger_count int not null,
        -- Their stamps (capture_triggers).
        trigger_modified varchar(200) null,
        recorded_columns nvarchar(max) not null,
        columns_upto int not null,
        unrecorded_at datetime2(3) null,
        constraint [pk:capture_tables] primary key (capture_id, table_no)
    );
-- stored_name: of the column in the capture's table; differs from its name if two tables disagree about the type. definition: its recorded
-- type. key_place: in the primary key, from 1.
if object_id(N'<<schema_in_text>>.[capture_columns]') is null
    create table <<schema>>.[capture_columns] (
        capture_id int not null,
        table_no smallint not null,
        place int not null,
        name nvarchar(128) not null,
        stored_name nvarchar(128) not null,
        definition nvarchar(300) not null,
        key_place int null,
        on_insert bit not null,
        on_update bit not null,
        on_delete bit not null,
        constraint [pk:capture_columns] primary key (capture_id, table_no, place)
    );
-- Changes that were, or may have been, missed. after_time: until when the feed was sealed then. An unresolved gap blocks sealing.
if object_id(N'<<schema_in_text>>.[capture_gaps]') is null
    create table <<schema>>.[capture_gaps] (
        number bigint not null identity(1, 1),
        capture_id int not null,
        table_no smallint not null,
        reason nvarchar(2000) not null,
        found_at datetime2(3) not null,
        after_time datetime2(3) null,
        resolved_at datetime2(3) null,
        resolved_by nvarchar(256) null,
        note nvarchar(2000) null,
        constraint [pk:capture_gaps] primary key (capture_id, number)
    );
