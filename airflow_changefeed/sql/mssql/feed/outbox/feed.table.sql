-- The ordered log. Appended in the order of its only key, read in ranges of it, never updated: pages compress well, as
-- neighbouring ULIDs share most of their bytes.
create table <<schema>>.[feed:<<name>>] (
    shard_id <<shard_type>> not null,
    ulid binary(16) not null,
    <<key_definitions>>,
    constraint [pk:feed:<<name>>] primary key (shard_id, ulid)
) with (data_compression = page);
