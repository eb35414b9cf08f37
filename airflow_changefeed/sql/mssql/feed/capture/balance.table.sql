-- Rows that each captured table gained by the events which were ordered in a shard. With what waits in the outbox it must give
-- the rows that the table has: else something passed unseen.
create table <<schema>>.[balance:<<name>>] (
    shard_id <<shard_type>> not null,
    table_no smallint not null,
    rows bigint not null,
    constraint [pk:balance:<<name>>] primary key (shard_id, table_no)
);
