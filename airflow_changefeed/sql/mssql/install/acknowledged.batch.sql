-- What dropped consumers had acknowledged of each shard, (after_ulid, upto_ulid]; no range touches another one of its shard.
if object_id(N'<<schema_in_text>>.[acknowledged]') is null
begin
    create table <<schema>>.[acknowledged] (
        feed_id int not null,
        shard nvarchar(36) not null,
        after_ulid binary(16) not null,
        upto_ulid binary(16) not null,
        constraint [pk:acknowledged] primary key (feed_id, shard, after_ulid)
    );
    alter table <<schema>>.[acknowledged] set (lock_escalation = disable);
end;
