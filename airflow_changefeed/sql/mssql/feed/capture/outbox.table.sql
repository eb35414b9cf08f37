-- Recorded changes not yet ordered: one row per statement and shard, however many rows the statement changed, to keep writers fast.
-- order_sequence: of the statement, drawn after it locked its rows. changefeed_first and
-- changefeed_rows: its events, as numbered in changefeed_row. changefeed_balance: rows that the table gained by them.
-- No page locks and no lock escalation: a drain must lock only the rows it takes (ADR 0005, R2).
create table <<schema>>.[outbox:<<name>>] (
    shard_id <<shard_type>> not null,
    order_sequence bigint not null,
    time_hint datetime2(3) not null,
    changefeed_tid bigint not null,
    changefeed_first int not null,
    changefeed_rows int not null,
    changefeed_table smallint not null,
    changefeed_balance int not null,
    constraint [pk:outbox:<<name>>] primary key (shard_id, order_sequence) with (allow_page_locks = off<<sequential_key>>)
)<<on_filegroup>>;
