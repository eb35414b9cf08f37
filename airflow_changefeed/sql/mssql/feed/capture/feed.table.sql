-- The ordered log of a capture, whose events can be counted: changefeed_sequence goes from 1 without a gap in each shard.
create table <<schema>>.[feed:<<name>>] (
    shard_id <<shard_type>> not null,
    ulid binary(16) not null,
    <<key_definitions>>,
    changefeed_sequence bigint not null,
    constraint [pk:feed:<<name>>] primary key (shard_id, ulid)
) with (data_compression = page);
