    insert into <<events>> (
        changefeed_statement, changefeed_row, changefeed_image, changefeed_shard, changefeed_table, changefeed_op,
        changefeed_tid, changefeed_at, changefeed_session, changefeed_trace<<update_stored>>)
    select
        @statement, p.changefeed_row, v.changefeed_image, p.changefeed_shard, <<table_no>>, p.changefeed_op,
        @tid, @at, @session, @trace<<image_values>>
    from (
        select
            row_number() over (order by <<pair_order>>) as changefeed_row,
            isnull(i.changefeed_shard, d.changefeed_shard) as changefeed_shard,
            <<pair_op>> as changefeed_op,
            case when d.<<first_key>> is null then 0 else 1 end as changefeed_has_old<<pair_values>>
        from (select <<source_columns>>, convert(<<shard_type>>, <<shard>>) as changefeed_shard from inserted as s) as i
        <<pair_join>> join (select <<source_columns>>, convert(<<shard_type>>, <<shard>>) as changefeed_shard from deleted as s) as d on <<same_key>>
        where <<keep_unchanged>> = 1
            or i.<<first_key>> is null
            or d.<<first_key>> is null
            -- By bytes and lengths, null for null: collations and blanks hide no change.
            or exists (select <<new_bytes>> except select <<old_bytes>>)
    ) as p
    cross apply (
        select 1 as changefeed_image<<new_image>> where p.changefeed_op = 'u'
        union all
        select 0<<old_image>> where p.changefeed_op = 'u' and p.changefeed_has_old = 1
        union all
        select 1<<added_image>> where p.changefeed_op = 'i'
        union all
        select 0<<deleted_image>> where p.changefeed_op = 'd'
    ) as v
