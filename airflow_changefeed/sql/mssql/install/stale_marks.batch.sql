-- Inserted history in windows that may already be exported; number grows and is never reused.
if object_id(N'<<schema_in_text>>.[stale_marks]') is null
begin
    create table <<schema>>.[stale_marks] (
        number bigint not null identity(1, 1),
        feed_id int not null,
        shard nvarchar(36) not null,
        after_ulid binary(16) not null,
        upto_ulid binary(16) not null,
        at datetime2(3) not null,
        reason nvarchar(1000) not null,
        constraint [pk:stale_marks] primary key (feed_id, number)
    );
    alter table <<schema>>.[stale_marks] set (lock_escalation = disable);
end;
