-- The range of ULIDs reserved by a serialized writer, one row per shard, written by lock:T in the writer's transaction.
-- A rollback to a savepoint undoes the row together with the reservation, but not the session context, so the ULID functions check here
-- (ADR 0005, R13). transaction_id repeats after a restart, but not together with ulid. Only the holder of the shard's lock writes its row.
if object_id(N'<<schema_in_text>>.[writer_locks]') is null
begin
    create table <<schema>>.[writer_locks] (
        feed_id int not null,
        shard nvarchar(36) not null,
        transaction_id bigint not null,
        ulid binary(16) not null,
        constraint [pk:writer_locks] primary key (feed_id, shard) with (allow_page_locks = off)
    );
    -- A lock on one shard must never escalate to all.
    alter table <<schema>>.[writer_locks] set (lock_escalation = disable);
end;
