-- Rows not yet ordered; written in the transaction that writes the event.
-- time_hint: UTC; which time the ULID should ideally have. order_sequence and changefeed_tid are given by their defaults: each
-- statement outside of a transaction is one of its own.
-- Not compressed, as rows are deleted within seconds and compressing would be paid by the writers. No secondary index, no
-- page locks and no escalation: a drain must lock nothing but the rows it takes (ADR 0001, R2).
create table <<schema>>.[outbox:<<name>>] (
    shard_id <<shard_type>> not null <<shard_default>>,
    order_sequence bigint not null constraint [def:outbox.order_sequence:<<name>>] default (next value for <<sequence>>),
    time_hint datetime2(3) not null constraint [def:outbox.time_hint:<<name>>] default (dateadd(microsecond, -500, sysutcdatetime())),
    changefeed_tid bigint not null constraint [def:outbox.changefeed_tid:<<name>>] default (current_transaction_id()),
    <<key_definitions>>,
    constraint [pk:outbox:<<name>>] primary key (shard_id, order_sequence) with (allow_page_locks = off)
);
