-- Closes the open gaps of a capture, after a person has checked them. The tables' current rows become the new base.
-- @note: what was done about them. @by: who. @resync: 1 records a reset and all current rows of each table with a gap, in this
--     transaction, so that a fold of the events is correct again; of all tables if no gap is open.
-- @resource_version: expected version of the capture; null skips the check.
-- errors: 77100 in a transaction. 77101 lock timeout; transient. 77108 @note or @by is missing. 77143 a trigger is still missing,
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
        declare @tables table (table_no smallint not null primary key, is_locked bit not null default 0, rows bigint null);
        declare @id int, @is_enabled bit, @no smallint, @rows bigint, @gained bigint, @reason nvarchar(2000), @message nvarchar(2048);
        declare @changes int, @seen bigint;
        if @@trancount > 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (resolve_capture)', 0;
        if isnull(@note, N'') = N'' or isnull(@by, N'') = N''
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @note and @by are required: who resolves the gaps, and what was done about them', 1;
        exec <<schema>>.[note_schemas] @name = N'<<name_text>>';
        begin transaction;
        -- Enabling, refreshing and disabling take this lock too.
        exec <<schema>>.[lock_setup] @lock_timeout = @lock_timeout;
        -- Before the version is checked, which grows with each gap: a gap recorded from here on was not seen by the caller, and stays open.
        select @seen = max(g.number) from <<schema>>.[capture_gaps] as g;
        exec <<schema>>.[check_version] @feed_id = <<feed_id>>, @resource_version = @resource_version;
        select @id = c.capture_id, @is_enabled = c.is_enabled from <<schema>>.[captures] as c where c.name = N'<<name_text>>';
        if @resync = 1 and @is_enabled = 0
            throw 77143, N'changefeed 77143: feed "<<name_text>>": its capture is disabled, so its rows cannot be recorded; enable it with @snapshot = 1, or resolve without @resync', 1;
        insert into @tables (table_no)
        select distinct g.table_no from <<schema>>.[capture_gaps] as g where g.capture_id = @id and g.resolved_at is null and @is_enabled = 1;
        -- No gap is open, but everything is to be recorded again.
        if @resync = 1 and @is_enabled = 1 and not exists (select 1 from @tables as t)
            insert into @tables (table_no) select t.table_no from <<schema>>.[capture_tables] as t where t.capture_id = @id;
        select top (1) @no = t.table_no from @tables as t order by t.table_no;
        while @no is not null
        begin
            -- An altered trigger is accepted as checked; a missing one must be recreated first.
            update <<schema>>.[capture_tables]
            set trigger_modified = (
                select max(t.modify_date) from <<schema>>.[capture_triggers] as t
                where t.capture_id = @id and t.table_no = @no)
            where capture_id = @id and table_no = @no;
            exec <<schema>>.[capture_settings:<<name>>] @table_no = @no, @reason = @reason output;
            if @reason is not null
            begin
                set @message = concat(N'changefeed 77143: feed "<<name_text>>": the gap cannot be resolved while its cause persists: ', @reason, N'. Recreate the triggers with refresh_capture, or disable the capture');
                throw 77143, @message, 1;
            end;
            exec <<schema>>.[capture_table:<<name>>] @table_no = @no, @what = 'counted', @rows = @rows output;
            if @resync = 1
                exec <<schema>>.[capture_table:<<name>>] @table_no = @no, @what = 'snapshot';
            update @tables set is_locked = 1, rows = @rows where table_no = @no;
            set @no = null;
            select top (1) @no = t.table_no from @tables as t where t.is_locked = 0 order by t.table_no;
        end;
        -- Last, because drains wait for us from here on, and a snapshot may wait for them. The recorded changes of a locked table do not
        -- change until then, and a snapshot does not change the balance.
        select top (1) @no = t.table_no from @tables as t order by t.table_no;
        while @no is not null
        begin
            exec <<schema>>.[capture_unordered:<<name>>] @table_no = @no, @is_dirty = 0, @rows = @gained output;
            update c
            set base_rows = t.rows - @gained
            from <<schema>>.[capture_tables] as c
            inner join @tables as t on t.table_no = c.table_no
            where c.capture_id = @id and c.table_no = @no and c.base_rows is not null;
            delete from @tables where table_no = @no;
            set @no = null;
            select top (1) @no = t.table_no from @tables as t order by t.table_no;
        end;
        update <<schema>>.[capture_gaps]
        set resolved_at = <<schema>>.[now](), resolved_by = @by, note = @note
        where capture_id = @id and resolved_at is null and number <= @seen;
        set @changes = @@rowcount;
        if @changes > 0 or @resync = 1 exec <<schema>>.[bump_version] @feed_id = <<feed_id>>;
        commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
