    insert into <<events>> (
        changefeed_statement, changefeed_row, changefeed_image, changefeed_shard, changefeed_table, changefeed_op,
        changefeed_tid, changefeed_at, changefeed_session, changefeed_trace<<insert_stored>>)
    select
        @statement, row_number() over (order by <<row_order>>), 1, a.changefeed_shard, <<table_no>>, 'i',
        @tid, @at, @session, @trace<<insert_values>>
    from inserted as i
    cross apply (select convert(<<shard_type>>, <<shard>>) as changefeed_shard from (select <<new_keys>>) as s) as a
