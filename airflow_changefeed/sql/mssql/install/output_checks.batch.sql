-- What the newest look at the files of an export's output found. missing: ranges that should be complete and are not. first_missing: begin of
-- the first of them; null if none is missing.
if object_id(N'<<schema_in_text>>.[output_checks]') is null
begin
    create table <<schema>>.[output_checks] (
        feed_id int not null,
        consumer nvarchar(128) not null,
        path nvarchar(4000) not null,
        checked_at datetime2(3) not null,
        checked_by nvarchar(256) not null,
        missing bigint not null,
        first_missing datetime2(3) null,
        constraint [pk:output_checks] primary key (feed_id, consumer)
    );
    alter table <<schema>>.[output_checks] set (lock_escalation = disable);
end;
