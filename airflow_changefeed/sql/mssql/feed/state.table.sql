-- One row for each shard that was ever ordered or locked.
-- time: the shard's high-water time; no ULID below it will be given. ulid: the next one that will be given, made of ulid_high and
-- ulid_low, with which one can count. purged_upto: inclusive; written before rows go (ADR 0001, R12).
create table <<schema>>.[state:<<name>>] (
    shard_id <<shard_type>> not null,
    time datetime2(3) not null,
    ulid_high binary(8) not null,
    ulid_low bigint not null,
    ulid as ulid_high + convert(binary(8), ulid_low),
    purged_upto binary(16) not null constraint [def:state.purged_upto:<<name>>] default 0x00000000000000000000000000000000,
    constraint [pk:state:<<name>>] primary key (shard_id)
);
