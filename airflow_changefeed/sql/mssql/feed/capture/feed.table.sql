-- The ordered log of a capture; changefeed_sequence numbers the events of each shard from 1 without gaps.
create table <<schema>>.[feed:<<name>>] (
    shard_id <<shard_type>> not null,
    ulid binary(16) not null,
    <<key_definitions>>,
    changefeed_sequence bigint not null,
    constraint [pk:feed:<<name>>] primary key (shard_id, ulid)
)<<on_filegroup>> with (data_compression = <<compression>>);
