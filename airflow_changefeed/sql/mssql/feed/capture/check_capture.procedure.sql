-- Compares each captured table with its recorded changes (compare_table:T), and records a gap for changes that were missed. Cheap if they
-- agree: takes no lock and reads no rows. If a table and its records differ while statements keep changing it, the check is inconclusive:
-- no gap is recorded, but nothing is sealed now. Call outside any transaction.
-- errors: 77100 in a transaction. 77101 a table could not be compared; transient. 77142 a gap is open; nothing can be sealed until it
--     is resolved
-- permission: operators
create or alter procedure <<schema>>.[check_capture:<<name>>]
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    begin try
        declare @tables table (table_no smallint not null primary key);
        declare @id int, @no smallint, @rows bigint, @expected bigint, @reason nvarchar(2000), @busy nvarchar(2000);
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
            -- A table with such an open gap is not counted again.
            if @reason is null and not exists (
                select 1 from <<schema>>.[capture_gaps] as g
                where g.capture_id = @id and g.table_no = @no and g.resolved_at is null and left(g.reason, 24) = left(N'its rows do not agree with what was recorded', 24))
            begin
                exec <<schema>>.[compare_table:<<name>>] @table_no = @no, @is_full = 0, @rows = @rows output, @expected = @expected output;
                if @rows is null and @expected is not null
                    select @busy = concat(t.table_schema, N'.', t.table_name)
                    from <<schema>>.[capture_tables] as t where t.capture_id = @id and t.table_no = @no;
                else if @rows <> @expected
                    set @reason = concat(N'its rows do not agree with what was recorded: it has ', @rows, N' rows, but should have ', @expected,
                        N'. Rows came or went without firing the triggers: by truncate, a bulk load without fire_triggers, a partition switch, or while a trigger was disabled');
            end;
            if @reason is not null and not exists (
                select 1 from <<schema>>.[capture_gaps] as g
                where g.capture_id = @id and g.table_no = @no and g.resolved_at is null and left(g.reason, 24) = left(@reason, 24))
            begin
                begin transaction;
                -- First, so that gaps are numbered in commit order: resolving with an outdated version is refused.
                exec <<schema>>.[bump_version] @feed_id = <<feed_id>>;
                insert into <<schema>>.[capture_gaps] (capture_id, table_no, reason, found_at, after_time)
                select @id, @no, @reason, <<schema>>.[now](), f.floor_time
                from <<schema>>.[feeds] as f
                where f.feed_id = <<feed_id>> and not exists (
                    select 1 from <<schema>>.[capture_gaps] as g
                    where g.capture_id = @id and g.table_no = @no and g.resolved_at is null and left(g.reason, 24) = left(@reason, 24));
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
        where g.capture_id = @id and g.resolved_at is null;
        if @reason is not null
        begin
            set @message = concat(N'changefeed 77142: feed "<<name_text>>": changes may not have been recorded: ', left(@reason, 1000),
                N'. Later windows may be incomplete, so nothing is sealed. Recreate triggers that are gone: airflow-changefeed capture refresh "<<name_text>>" --conn-id ... . Find out what is missing, then resolve the gap: airflow-changefeed capture resolve "<<name_text>>" --note ... --conn-id ... . To fold later times, take a snapshot afterwards, or add --resync, which records the current rows as events');
            throw 77142, @message, 1;
        end;
        if @busy is not null
        begin
            set @message = concat(N'changefeed 77101: feed "<<name_text>>" was not sealed: table ', @busy, N' does not match its recorded changes, but statements are ', N'changing it, so the check is inconclusive. Retry when they have ended. ', N'With row versions the check would not have to wait: alter database current set allow_snapshot_isolation on');
            throw 77101, @message, 1;
        end;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
