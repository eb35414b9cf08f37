-- Captures the current columns of a capture's tables, and recreates its triggers. Recorded events stay.
-- @capture: its name. @without: JSON array of columns to stop capturing, so that they can be dropped or altered.
-- @resource_version: expected version; null skips the check. @on_ddl: as for enable_capture; null leaves it as it is.
-- If the captured columns, their types or the key have changed, that is recorded, in order, in each shard that has events.
-- errors: 55000 @without is not a JSON array, or names an unknown column. 77141 the capture does not exist. 77143 a column's type is
--     incompatible with the recorded values; nothing was changed. 77140. 77155 it is at another @resource_version. 77101 another set-up
--     is running, or transactions hold a table; transient
-- permission: as for enable_capture
create or alter procedure <<schema>>.[refresh_capture] (
    @capture nvarchar(128),
    @without nvarchar(max) = N'[]',
    @resource_version bigint = null,
    @on_ddl varchar(10) = null
)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    set rowcount 0;
    -- If this and a writer deadlock, the writer wins.
    set deadlock_priority low;
    declare @id int, @no smallint, @last smallint, @object_id int, @message nvarchar(2048), @is_enabled bit;
    declare @found nvarchar(max), @feed_id int;
    declare @until datetime2(3), @lock_timeout int = @@lock_timeout, @is_own bit = case when @@trancount = 0 then 1 else 0 end;
    if isnull(isjson(@without), 0) = 0
        throw 55000, N'changefeed 55000: @without must be a JSON array, for example N''["name"]''', 1;
    if @on_ddl not in ('pause', 'evolve', 'refuse')
        throw 55000, N'changefeed 55000: @on_ddl must be pause, evolve or refuse', 1;
    if @@trancount = 0 exec <<schema>>.[note_schemas] @name = @capture;
    -- Everybody queues behind what is waited for here.
    if @@lock_timeout < 0 or @@lock_timeout > 2000 set lock_timeout 2000;
    while 1 = 1
    begin
        begin try
            select @id = null, @feed_id = null, @found = null;
            begin transaction;
            exec <<schema>>.[lock_setup];
            select @id = c.capture_id, @is_enabled = c.is_enabled, @feed_id = f.feed_id
            from <<schema>>.[captures] as c left join <<schema>>.[feeds] as f on f.name = c.name
            where c.name = @capture;
            if @id is null
            begin
                set @message = concat(N'changefeed 77141: capture "', @capture, N'" not found in this database');
                throw 77141, @message, 1;
            end;
            exec <<schema>>.[check_version] @feed_id = @feed_id, @resource_version = @resource_version;
            if @is_enabled = 0
            begin
                set @message = concat(N'changefeed 77140: capture "', @capture, N'" is disabled; enable it, which also captures the current columns');
                throw 77140, @message, 1;
            end;
            if @on_ddl <> 'pause' and exists (select 1 from <<schema>>.[captures] as c where c.capture_id = @id and c.guard_schema = 0)
            begin
                set @message = concat(N'changefeed 55000: capture "', @capture, N'" was enabled without @guard_schema, whose trigger @on_ddl = ', @on_ddl, N' needs');
                throw 55000, @message, 1;
            end;
            select @found = string_agg(convert(nvarchar(max), j.value), N', ') from openjson(@without) as j
            where not exists (select 1 from <<schema>>.[capture_columns] as k where k.capture_id = @id and k.name = j.value collate database_default);
            if @found is not null
            begin
                set @message = concat(N'changefeed 55000: capture "', @capture, N'" has no column ', left(@found, 500), N' to leave out');
                throw 55000, @message, 1;
            end;
            exec <<schema>>.[note_capture_gaps] @capture_id = @id;
            update <<schema>>.[captures] set is_changing = 1, on_ddl = isnull(@on_ddl, on_ddl) where capture_id = @id;
            select top (1) @no = t.table_no from <<schema>>.[capture_tables] as t where t.capture_id = @id order by t.table_no;
            while @no is not null
            begin
                select @object_id = t.object_id from <<schema>>.[capture_tables] as t where t.capture_id = @id and t.table_no = @no;
                if object_name(@object_id) is null
                begin
                    set @message = concat(N'changefeed 77143: a table of capture "', @capture, N'" is missing; disable the capture');
                    throw 77143, @message, 1;
                end;
                exec <<schema>>.[change_capture_columns] @capture_id = @id, @table_no = @no, @without = @without;
                set @last = @no;
                set @no = null;
                select top (1) @no = t.table_no from <<schema>>.[capture_tables] as t where t.capture_id = @id and t.table_no > @last order by t.table_no;
            end;
            if exists (select 1 from <<schema>>.[captures] as c where c.capture_id = @id and c.guard_schema = 1) exec <<schema>>.[guard_schema];
            update <<schema>>.[captures] set is_changing = 0 where capture_id = @id;
            -- Even if nothing changed: what was read before may mean something else now.
            exec <<schema>>.[bump_version] @feed_id = @feed_id;
            commit;
            break;
        end try
        begin catch
            if @@trancount > 0 rollback;
            if error_number() not in (1205, 1222) or @is_own = 0 throw;
            exec <<schema>>.[pause_setup] @capture = @capture, @lock_timeout = @lock_timeout, @until = @until output;
        end catch;
    end;
end
