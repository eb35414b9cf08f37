<<guard>>insert into <<events>> (changefeed_table, changefeed_shard, changefeed_op, changefeed_at<<columns>>)
    values (<<number>>, <<shard>>, '<<op>>', <<now>><<values>>);
    insert into <<outbox>> (order_sequence, shard_id, time_hint)
    values (last_insert_rowid(), <<shard>>, <<now>>);
