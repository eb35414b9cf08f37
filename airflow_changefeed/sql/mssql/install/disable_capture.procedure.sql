-- Stops recording. The feed stays, so that it can be read to its end; drop_feed drops it with everything recorded.
-- @capture: its name. Idempotent. @resource_version: expected version; null skips the check.
-- errors: 77141 the capture does not exist. 77101 another set-up is running, or transactions hold a table; transient. 77155 it is at another @resource_version
-- permission: as for enable_capture
create or alter procedure <<schema>>.[disable_capture] (@capture nvarchar(128), @resource_version bigint = null)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    set rowcount 0;
    -- If this and a writer deadlock, the writer wins.
    set deadlock_priority low;
    declare @id int, @message nvarchar(2048), @place int, @sql nvarchar(max), @feed_id int, @was_enabled bit;
    declare @until datetime2(3), @lock_timeout int = @@lock_timeout, @is_own bit = case when @@trancount = 0 then 1 else 0 end;
    declare @drops table (place int not null identity(1, 1) primary key, sql nvarchar(max) not null);
    if @@trancount = 0 exec <<schema>>.[note_schemas] @name = @capture;
    -- Everybody queues behind what is waited for here.
    if @@lock_timeout < 0 or @@lock_timeout > 2000 set lock_timeout 2000;
    while 1 = 1
    begin
        begin try
            select @id = null, @feed_id = null, @place = null;
            begin transaction;
            exec <<schema>>.[lock_setup];
            select @id = c.capture_id, @was_enabled = c.is_enabled, @feed_id = f.feed_id
            from <<schema>>.[captures] as c left join <<schema>>.[feeds] as f on f.name = c.name
            where c.name = @capture;
            if @id is null
            begin
                set @message = concat(N'changefeed 77141: capture "', @capture, N'" not found in this database');
                throw 77141, @message, 1;
            end;
            exec <<schema>>.[check_version] @feed_id = @feed_id, @resource_version = @resource_version;
            exec <<schema>>.[note_capture_gaps] @capture_id = @id;
            update <<schema>>.[captures]
            set is_changing = 1, disabled_at = case when is_enabled = 1 then <<schema>>.[now]() else disabled_at end, is_enabled = 0
            where capture_id = @id;
            delete from @drops;
            insert into @drops (sql)
            select concat(N'drop trigger ', quotename(t.table_schema), N'.', quotename(r.name))
            from <<schema>>.[capture_tables] as t
            inner join <<schema>>.[capture_triggers] as r on r.capture_id = t.capture_id and r.table_no = t.table_no
            where t.capture_id = @id
            union all
            select concat(N'drop table <<schema_in_text>>.', quotename(t.guard_name))
            from <<schema>>.[capture_tables] as t
            where t.capture_id = @id and t.guard_name is not null and object_id(concat(N'<<schema_in_text>>.', quotename(t.guard_name))) is not null;
            select top (1) @place = d.place, @sql = d.sql from @drops as d order by d.place;
            while @place is not null
            begin
                exec sys.sp_executesql @sql;
                delete from @drops where place = @place;
                set @place = null;
                select top (1) @place = d.place, @sql = d.sql from @drops as d order by d.place;
            end;
            update <<schema>>.[capture_tables] set guard_name = null, trigger_count = 0 where capture_id = @id;
            -- Nothing more is recorded, also not of the rows that were there.
            delete from <<schema>>.[snapshots] where feed_id = @feed_id and path = N'';
            update <<schema>>.[captures] set is_changing = 0 where capture_id = @id;
            if database_principal_id(N'<<schema_text>>.guard') is not null exec <<schema>>.[grant_guard];
            if @was_enabled = 1 exec <<schema>>.[bump_version] @feed_id = @feed_id;
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
