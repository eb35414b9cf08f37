-- Rows not yet ordered; written in the transaction that writes the event.
-- time_hint: UTC; the desired time of the ULID. order_sequence and changefeed_tid come from their defaults; each statement outside a
-- transaction is its own transaction. Not compressed, because rows are deleted within seconds and writers would pay for the compression. No
-- secondary index, no page locks and no lock escalation: a drain must lock only the rows it takes (ADR 0005, R2).
create table <<schema>>.[outbox:<<name>>] (
    shard_id <<shard_type>> not null <<shard_default>>,
    order_sequence bigint not null constraint [def:outbox.order_sequence:<<name>>] default (next value for <<sequence>>),
    time_hint datetime2(3) not null constraint [def:outbox.time_hint:<<name>>] default (dateadd(microsecond, -500, sysutcdatetime())),
    changefeed_tid bigint not null constraint [def:outbox.changefeed_tid:<<name>>] default (current_transaction_id()),
    <<key_definitions>>,
    constraint [pk:outbox:<<name>>] primary key (shard_id, order_sequence) with (allow_page_locks = off<<sequential_key>>)
)<<on_filegroup>>;
