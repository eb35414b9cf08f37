-- The ordered log. Appended in key order by one drain at a time, read in key ranges, never updated. Pages compress well, because
-- neighbouring ULIDs share most of their bytes.
create table <<schema>>.[feed:<<name>>] (
    shard_id <<shard_type>> not null,
    ulid binary(16) not null,
    <<key_definitions>>,
    constraint [pk:feed:<<name>>] primary key (shard_id, ulid)
)<<on_filegroup>> with (data_compression = <<compression>>);
