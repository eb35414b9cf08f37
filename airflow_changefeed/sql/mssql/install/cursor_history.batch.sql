-- Changes of cursors, except the steps of consumers: the newest of each row.
-- before_ulid: null when the row was created. resource_version: of the row, after the change. why: the mover's comment; null for a
-- program's regular moves.
if object_id(N'<<schema_in_text>>.[cursor_history]') is null
begin
    create table <<schema>>.[cursor_history] (
        number bigint not null identity(1, 1),
        feed_id int not null,
        consumer nvarchar(128) not null,
        shard nvarchar(36) not null,
        before_ulid binary(16) null,
        after_ulid binary(16) not null,
        resource_version bigint not null,
        moved_at datetime2(3) not null,
        moved_by nvarchar(256) not null,
        why nvarchar(2000) null,
        constraint [pk:cursor_history] primary key (feed_id, consumer, shard, number)
    );
    alter table <<schema>>.[cursor_history] set (lock_escalation = disable);
end;
