-- Which range of ULIDs a serialized writer has reserved, one row for each shard, written by lock:T in the writer's transaction.
-- A rollback to a savepoint takes the row back together with the reservation, but not the session's context: the functions
-- that give ULIDs look here (ADR 0001, R13). transaction_id comes again after a restart, ulid then is another one; both
-- together never do. Only whoever holds the shard's lock writes its row.
if object_id(N'<<schema_in_text>>.[writer_locks]') is null
begin
    create table <<schema>>.[writer_locks] (
        feed_id int not null,
        shard nvarchar(36) not null,
        transaction_id bigint not null,
        ulid binary(16) not null,
        constraint [pk:writer_locks] primary key (feed_id, shard) with (allow_page_locks = off)
    );
    -- A lock on one shard must never become one on all.
    alter table <<schema>>.[writer_locks] set (lock_escalation = disable);
end;
