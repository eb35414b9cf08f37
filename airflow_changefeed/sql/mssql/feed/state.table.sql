-- One row for each shard ever ordered or locked.
-- time: the shard's high-water time; no ULID below it will be assigned. ulid: the next one, split into ulid_high and ulid_low for counting.
-- purged_upto: inclusive; written before rows are deleted (ADR 0005, R12).
create table <<schema>>.[state:<<name>>] (
    shard_id <<shard_type>> not null,
    time datetime2(3) not null,
    ulid_high binary(8) not null,
    ulid_low bigint not null,
    ulid as ulid_high + convert(binary(8), ulid_low),
    purged_upto binary(16) not null constraint [def:state.purged_upto:<<name>>] default 0x00000000000000000000000000000000,
    constraint [pk:state:<<name>>] primary key (shard_id)
)<<on_filegroup>>;
