-- Rows not yet ordered; written in the transaction that writes the event.
-- order_sequence: there is a single writer, so its order is commit order.
-- time_hint: milliseconds since 1970 UTC, or ISO 8601 text in UTC.
-- coalesce, because a check that is null passes.
create table if not exists <<outbox>> (
    order_sequence integer primary key autoincrement,
    shard_id  <<shard_type>> not null default <<shard_default>> check (<<shard_check>>),
    time_hint not null default (cast((julianday('now') - 2440587.5) * 86400000 as integer))
              check (typeof(time_hint) = 'integer' and time_hint >= 0
                     or typeof(time_hint) = 'text' and coalesce(julianday(time_hint) >= 2440587.5, false)),
    <<key_definitions>>
);
