    insert into <<events>> (
        changefeed_statement, changefeed_row, changefeed_image, changefeed_shard, changefeed_table, changefeed_op,
        changefeed_tid, changefeed_at, changefeed_session, changefeed_trace<<update_stored>>)
    select
        -- Keys are unique, so both images of a pair get the same number. No derived table lists all columns: with a thousand of them it
        -- would take many minutes to compile.
        @statement, dense_rank() over (order by <<pair_order>>), v.changefeed_image,
        isnull(a.changefeed_shard, b.changefeed_shard), <<table_no>>, <<pair_op>>,
        @tid, @at, @session, @trace<<image_values>>
    from inserted as i
    cross apply (select convert(<<shard_type>>, <<shard>>) as changefeed_shard from (select <<new_keys>>) as s) as a
    <<pair_join>> join (
        deleted as d
        cross apply (select convert(<<shard_type>>, <<shard>>) as changefeed_shard from (select <<old_keys>>) as s) as b
    ) on <<same_key>>
    cross join (values (0), (1)) as v (changefeed_image)
    where (
            v.changefeed_image = 1 and i.<<first_key>> is not null
            or v.changefeed_image = 0 and d.<<first_key>> is not null)
        and (
            <<keep_unchanged>> = 1
            or i.<<first_key>> is null
            or d.<<first_key>> is null
            -- Compares bytes and lengths, with null equal to null: collations and trailing blanks hide no change.
            or exists (select <<new_bytes>> except select <<old_bytes>>))
