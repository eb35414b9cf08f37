-- Compares each captured table with what was recorded of it, and writes down what passed unseen. Cheap where all is right: no
-- lock, and no look at the rows. Outside of any transaction.
-- errors: 77100 in a transaction. 77101 no lock; transient. 77142 a gap is open: nothing can be sealed until it is settled
-- permission: operators
create procedure <<schema>>.[check_capture:<<name>>] (@lock_timeout int = 60000)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    begin try
        declare @tables table (table_no smallint not null primary key);
        declare @id int, @no smallint, @base bigint, @rows bigint, @gained bigint, @round int, @reason nvarchar(2000);
        declare @message nvarchar(2048);
        if @@trancount > 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (check_capture)', 0;
        select @id = c.capture_id from <<schema>>.[captures] as c where c.name = N'<<name_text>>';
        insert into @tables (table_no)
        select t.table_no
        from <<schema>>.[capture_tables] as t
        inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
        where t.capture_id = @id and c.is_enabled = 1;
        select top (1) @no = t.table_no from @tables as t order by t.table_no;
        while @no is not null
        begin
            exec <<schema>>.[capture_settings:<<name>>] @table_no = @no, @reason = @reason output;
            select @base = t.base_rows from <<schema>>.[capture_tables] as t where t.capture_id = @id and t.table_no = @no;
            if @reason is null and @base is not null
            begin
                set @round = 0;
                while @round < 5
                begin
                    exec <<schema>>.[capture_table:<<name>>] @table_no = @no, @what = 'rows', @is_exact = 0, @rows = @rows output;
                    exec <<schema>>.[capture_unordered:<<name>>] @table_no = @no, @is_dirty = 1, @rows = @gained output;
                    set @round = case when @rows = @base + @gained then 9 else @round + 1 end;
                end;
                if @round < 9
                begin
                    -- Somebody is changing it at this moment, or something is wrong.
                    begin transaction;
                    exec <<schema>>.[capture_gained:<<name>>] @table_no = @no, @expected = @base, @rows = @rows output, @gained = @gained output;
                    commit;
                    if @rows <> @base + @gained
                        set @reason = concat(N'its rows do not agree with what was recorded: it has ', @rows, N' rows, and should have ', @base + @gained,
                            N'. They came or went without the triggers: by truncate, a bulk load without fire_triggers, a partition that was switched, or while a trigger was off');
                end;
            end;
            if @reason is not null and not exists (
                select 1 from <<schema>>.[capture_gaps] as g
                where g.capture_id = @id and g.table_no = @no and g.settled_at is null and left(g.reason, 24) = left(@reason, 24))
            begin
                begin transaction;
                -- First, so that gaps are numbered as they are committed: whoever settles what he saw before is refused.
                exec <<schema>>.[bump_version] @feed_id = <<feed_id>>;
                insert into <<schema>>.[capture_gaps] (capture_id, table_no, reason, found_at, after_time)
                select @id, @no, @reason, <<schema>>.[now](), f.floor_time
                from <<schema>>.[feeds] as f
                where f.feed_id = <<feed_id>> and not exists (
                    select 1 from <<schema>>.[capture_gaps] as g
                    where g.capture_id = @id and g.table_no = @no and g.settled_at is null and left(g.reason, 24) = left(@reason, 24));
                commit;
            end;
            delete from @tables where table_no = @no;
            set @no = null;
            select top (1) @no = t.table_no from @tables as t order by t.table_no;
        end;
        set @reason = null;
        select @reason = string_agg(convert(nvarchar(max), concat(t.table_schema, N'.', t.table_name, N': ', g.reason)), N'; ') within group (order by g.number)
        from <<schema>>.[capture_gaps] as g
        inner join <<schema>>.[capture_tables] as t on t.capture_id = g.capture_id and t.table_no = g.table_no
        where g.capture_id = @id and g.settled_at is null;
        if @reason is not null
        begin
            set @message = concat(N'changefeed 77142: feed "<<name_text>>": changes passed its capture unseen, or may have: ', left(@reason, 1400),
                N'. No window from there on is complete, so nothing is sealed. Look at them (airflow changefeed capture gaps), then settle them (capture settle; its resync records the rows there are now)');
            throw 77142, @message, 1;
        end;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
