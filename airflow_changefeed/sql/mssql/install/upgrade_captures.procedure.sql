-- Recreates the triggers of captures created by another version. Waits for open transactions and queries of each table, two seconds at a
-- time, as long as the session's lock_timeout; the captured columns stay unchanged. A table that fails stops no other, and keeps its triggers.
-- In a caller's transaction, which the first error dooms, it stops at that error.
-- errors: 77160 the tables that failed, with reasons; the others are done, and repeating continues
-- permission: as for enable_capture
create or alter procedure <<schema>>.[upgrade_captures]
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    -- If this and a writer deadlock, the writer wins.
    set deadlock_priority low;
    declare @found table (
        capture_id int not null, table_no smallint not null, name nvarchar(300) not null, reason nvarchar(2048) null, is_done bit not null,
        primary key (capture_id, table_no));
    declare @is_own bit = case when @@trancount = 0 then 1 else 0 end, @id int, @no smallint, @reason nvarchar(2048), @message nvarchar(2048), @failed int, @all int;
    declare @capture nvarchar(128), @until datetime2(3), @lock_timeout int = @@lock_timeout, @is_again bit;
    insert into @found (capture_id, table_no, name, is_done)
    select t.capture_id, t.table_no, concat(t.table_schema, N'.', t.table_name), 0
    from <<schema>>.[capture_tables] as t
    inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
    -- A missing table becomes a gap at the next seal.
    where c.is_enabled = 1 and c.version <> <<schema>>.[version]() and object_name(t.object_id) is not null;
    select top (1) @id = f.capture_id, @no = f.table_no from @found as f order by f.capture_id, f.table_no;
    -- Everybody queues behind what is waited for here.
    if @@lock_timeout < 0 or @@lock_timeout > 2000 set lock_timeout 2000;
    while @id is not null
    begin
        select @reason = null, @is_again = 0;
        begin try
            begin transaction;
            exec <<schema>>.[lock_setup];
            -- The previous holder of the lock may have disabled or dropped it, or recreated its triggers.
            if exists (select 1 from <<schema>>.[captures] as c where c.capture_id = @id and c.is_enabled = 1 and c.version <> <<schema>>.[version]())
            begin
                exec <<schema>>.[note_capture_gaps] @capture_id = @id;
                update <<schema>>.[captures] set is_changing = 1 where capture_id = @id;
                exec <<schema>>.[create_capture_objects] @capture_id = @id, @table_no = @no;
                -- Not yet of this version while another of its tables is pending or has failed: repeating continues.
                update <<schema>>.[captures]
                set is_changing = 0,
                    version = case when exists (
                        select 1 from @found as f where f.capture_id = @id and (f.table_no > @no or f.reason is not null)) then '' else version end
                where capture_id = @id;
            end;
            commit;
        end try
        begin catch
            set @reason = error_message();
            if @@trancount > 0 rollback;
            if @is_own = 0 throw;
            if error_number() in (1205, 1222)
            begin try
                select @capture = c.name from <<schema>>.[captures] as c where c.capture_id = @id;
                exec <<schema>>.[pause_setup] @capture = @capture, @lock_timeout = @lock_timeout, @until = @until output;
                set @is_again = 1;
            end try
            begin catch
                set @reason = error_message();
            end catch;
        end catch;
        if @is_again = 1 continue;
        set @until = null;
        update @found set is_done = 1, reason = @reason where capture_id = @id and table_no = @no;
        set @id = null;
        select top (1) @id = f.capture_id, @no = f.table_no from @found as f where f.is_done = 0 order by f.capture_id, f.table_no;
    end;
    if exists (select 1 from sys.triggers as t where t.parent_class = 0 and t.name = N'<<schema_text>>_captures')
    begin
        begin transaction;
        exec <<schema>>.[lock_setup];
        exec <<schema>>.[guard_schema];
        commit;
    end;
    select @failed = count(f.reason), @all = count(*) from @found as f;
    if @failed = 0 return;
    -- All reasons share the length of a message.
    select @message = string_agg(convert(nvarchar(max), concat(N'"', f.name, N'": ', left(f.reason, 1600 / @failed))), N'; ') within group (order by f.name)
    from @found as f where f.reason is not null;
    set @message = concat(N'changefeed 77160: ', @failed, N' of ', @all, N' captured tables could not be upgraded, and keep the triggers they have: ',
        left(@message, 1700), N'. The others are upgraded. Fix each problem, then run the install script again');
    throw 77160, @message, 1;
end
