-- Closes the open gaps of a capture, after a person has checked them. The tables' current rows are counted as the new base, as a seal
-- counts them (compare_table:T): no writer waits for it.
-- @note: what was done about them. @by: who. @resync: 1 also records a reset for each table with a gap, and begins to record its current
--     rows, so that a fold of the events is correct again; record_rows:T goes on. Of all tables if no gap is open and no recording has begun.
-- @resource_version: expected version of the capture; null skips the check.
-- errors: 77100 in a transaction. 77101 lock timeout, or a table is changed all the time; transient. 77158 a snapshot of a table runs. 77108 @note or @by is missing. 77143 a trigger is still missing,
--     disabled or altered. 77155 it is at another @resource_version; nothing was changed
-- permission: operators
create or alter procedure <<schema>>.[resolve_capture:<<name>>] (
    @note nvarchar(2000),
    @by nvarchar(256),
    @resync bit = 0,
    @lock_timeout int = 60000,
    @resource_version bigint = null
)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    -- If this and a writer deadlock, the writer wins.
    set deadlock_priority low;
    begin try
        declare @tables table (table_no smallint not null primary key, is_done bit not null default 0, counted bigint null, catalog bigint null, difference bigint null);
        declare @id int, @is_enabled bit, @no smallint, @rows bigint, @expected bigint, @counted bigint, @catalog bigint, @reason nvarchar(2000), @message nvarchar(2048);
        declare @changes int, @seen bigint, @begun bit = 0;
        if @@trancount > 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (resolve_capture)', 0;
        if isnull(@note, N'') = N'' or isnull(@by, N'') = N''
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @note and @by are required: who resolves the gaps, and what was done about them', 1;
        exec <<schema>>.[note_schemas] @name = N'<<name_text>>';
        -- A gap recorded from here on was not seen by the caller, and stays open.
        select @seen = max(g.number) from <<schema>>.[capture_gaps] as g;
        select @id = c.capture_id, @is_enabled = c.is_enabled from <<schema>>.[captures] as c where c.name = N'<<name_text>>';
        if @resync = 1 and @is_enabled = 0
        begin
            -- A caller who has seen it enabled hears that first.
            exec <<schema>>.[check_version] @feed_id = <<feed_id>>, @resource_version = @resource_version;
            throw 77143, N'changefeed 77143: feed "<<name_text>>": its capture is disabled, so its rows cannot be recorded; enable it with @record_rows = 1, or resolve without @resync', 1;
        end;
        insert into @tables (table_no)
        select distinct g.table_no from <<schema>>.[capture_gaps] as g
        where g.capture_id = @id and g.resolved_at is null and g.number <= @seen and @is_enabled = 1;
        -- Counted in no transaction of ours, so that no lock is kept. What the triggers miss from here on is another gap.
        select top (1) @no = t.table_no from @tables as t order by t.table_no;
        while @no is not null
        begin
            exec <<schema>>.[compare_table:<<name>>] @table_no = @no, @is_full = 0, @rows = @rows output, @expected = @expected output, @counted = @counted output, @catalog = @catalog output;
            if @rows is null and @expected is not null
            begin
                set @message = concat(N'changefeed 77101: feed "<<name_text>>": its gaps were not resolved, because statements change table ', @no, N' of the capture all the time, so its rows cannot be counted. Retry when they have ended. ', N'With row versions that would not matter: alter database current set allow_snapshot_isolation on');
                throw 77101, @message, 1;
            end;
            update @tables set is_done = 1, counted = @counted, catalog = @catalog, difference = @rows - @expected where table_no = @no;
            set @no = null;
            select top (1) @no = t.table_no from @tables as t where t.is_done = 0 order by t.table_no;
        end;
        begin transaction;
        -- Enabling, refreshing and disabling take this lock too.
        exec <<schema>>.[lock_setup] @lock_timeout = @lock_timeout;
        exec <<schema>>.[check_version] @feed_id = <<feed_id>>, @resource_version = @resource_version;
        update c
        set base_rows = isnull(t.counted, c.base_rows), base_catalog = isnull(t.catalog, c.base_catalog + t.difference)
        from <<schema>>.[capture_tables] as c
        inner join @tables as t on t.table_no = c.table_no
        where c.capture_id = @id and t.difference is not null;
        if @resync = 1 and not exists (select 1 from @tables as t)
            and not exists (select 1 from <<schema>>.[snapshots] as s where s.feed_id = <<feed_id>> and s.path = N'')
            insert into @tables (table_no) select t.table_no from <<schema>>.[capture_tables] as t where t.capture_id = @id;
        update @tables set is_done = 0;
        select top (1) @no = t.table_no from @tables as t order by t.table_no;
        while @no is not null
        begin
            -- An altered trigger is accepted as checked; a missing one must be recreated first.
            update <<schema>>.[capture_tables]
            set trigger_modified = (
                select string_agg(convert(nvarchar(max), t.stamp), N',') from <<schema>>.[capture_triggers] as t
                where t.capture_id = @id and t.table_no = @no)
            where capture_id = @id and table_no = @no;
            exec <<schema>>.[capture_settings:<<name>>] @table_no = @no, @reason = @reason output;
            if @reason is not null
            begin
                set @message = concat(N'changefeed 77143: feed "<<name_text>>": the gap cannot be resolved while its cause persists: ', @reason, N'. Recreate the triggers with refresh_capture, or disable the capture');
                throw 77143, @message, 1;
            end;
            if @resync = 1
            begin
                -- First: what has begun of the table would otherwise end behind this reset.
                delete s
                from <<schema>>.[snapshots] as s
                inner join <<schema>>.[capture_tables] as t on t.capture_id = @id and t.table_no = @no
                where s.feed_id = <<feed_id>> and s.path = N'' and s.table_name = concat(t.table_schema, N'.', t.table_name);
                exec <<schema>>.[capture_table:<<name>>] @table_no = @no, @what = 'reset';
                set @begun = 1;
            end;
            update @tables set is_done = 1 where table_no = @no;
            set @no = null;
            select top (1) @no = t.table_no from @tables as t where t.is_done = 0 order by t.table_no;
        end;
        update <<schema>>.[capture_gaps]
        set resolved_at = <<schema>>.[now](), resolved_by = @by, note = @note
        where capture_id = @id and resolved_at is null and number <= @seen;
        set @changes = @@rowcount;
        if @changes > 0 or @begun = 1 exec <<schema>>.[bump_version] @feed_id = <<feed_id>>;
        -- Behind the version: begin_snapshot locks both in this order.
        select @no = null;
        select top (1) @no = t.table_no from @tables as t where @begun = 1 order by t.table_no;
        while @no is not null
        begin
            exec <<schema>>.[claim_recording] @capture = N'<<name_text>>', @table_no = @no, @by = @by;
            delete from @tables where table_no = @no;
            set @no = null;
            select top (1) @no = t.table_no from @tables as t order by t.table_no;
        end;
        commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
