    -- A merge fires the triggers of its actions in an order that the server does not define, after all its rows have changed. So the deletion
    -- of a key may be recorded behind the insertion of another row with that key. The present row, once more behind the deletion, makes the
    -- last event of the key right in either order (ADR 0007). A statement with one action has only this trigger's rows. Should the server
    -- ever count otherwise, the keys are looked up in vain.
    if @affected <> @rows and exists (
        select 1 from <<events>> as e with (readcommittedlock)
        where e.changefeed_statement = @statement and e.changefeed_op = 'd')
    begin
        set @statement = next value for <<sequence>>;
        insert into <<events>> (
            changefeed_statement, changefeed_row, changefeed_image, changefeed_shard, changefeed_table, changefeed_op,
            changefeed_tid, changefeed_at, changefeed_session, changefeed_trace<<snapshot_stored>>)
        select
            @statement, row_number() over (order by <<row_order>>), 1, a.changefeed_shard, <<table_no>>, 'r',
            @tid, @at, @session, @trace<<snapshot_values>>
        from (
            select <<old_keys>> from deleted as d
            where not exists (select 1 from inserted as i where <<same_key>>)
        ) as d
        -- Seeks only keys that this statement has locked: a scan would wait for other writers, and a serializable one would lock gaps.
        inner join <<table>> as i with (forceseek, readcommittedlock) on <<same_key>>
        cross apply (select convert(<<shard_type>>, <<shard>>) as changefeed_shard from (select <<new_keys>>) as s) as a
        option (recompile);
        -- These rows are counted where they were inserted, so they do not change the balance.
        insert into <<outbox>> (
            shard_id, order_sequence, time_hint, changefeed_tid, changefeed_first, changefeed_rows, changefeed_table, changefeed_balance)
        select e.changefeed_shard, @statement, @at, @tid, min(e.changefeed_row), count(*), <<table_no>>, 0
        from <<events>> as e with (readcommittedlock)
        where e.changefeed_statement = @statement
        group by e.changefeed_shard;
    end;
