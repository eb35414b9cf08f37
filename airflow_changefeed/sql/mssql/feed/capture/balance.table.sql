-- Net rows that each captured table gained through the events ordered in a shard. Together with the outbox this must equal the table's row
-- count; otherwise a change was not recorded.
create table <<schema>>.[balance:<<name>>] (
    shard_id <<shard_type>> not null,
    table_no smallint not null,
    rows bigint not null,
    constraint [pk:balance:<<name>>] primary key (shard_id, table_no)
)<<on_filegroup>>;
