-- Drains every feed that the caller operates, one after the other; or seals and purges them. For SQL Server Agent and other schedulers. A
-- failure does not stop the other feeds. One that is being upgraded is waited for, and named among the failed ones if that takes too long. One
-- that is just being created or dropped is not there yet, or no more.
-- @purge_before: UTC, exclusive; each feed is sealed until then, unless it is further, and purged up to then. Null drains.
-- @batch_rows: rows per transaction of a purge. @lock_timeout: milliseconds, for each lock of a drain or seal; other locks wait a minute.
-- message: for each feed "feed" and its name; and what a purge keeps because it lies before the beginning of an export, with the remedy
-- result: for each feed that of drain_feed:T; or of seal_feed:T, where it was to be sealed, and purge_feed:T.
-- errors: 77100 in a transaction. 77159 the feeds that failed, with reasons; the others are done
-- permission: users; skips feeds whose operator the caller is not
create or alter procedure <<schema>>.[maintain_feeds] (
    @purge_before datetime2(3) = null,
    @batch_rows int = 10000,
    @lock_timeout int = 60000
)
as
begin
    set xact_abort, nocount on;
    set implicit_transactions off;
    set transaction isolation level read committed;
    set rowcount 0;
    -- SQL Server Agent waits without end, and a purge takes no time-out of its own: an open writer would hold up all later feeds.
    set lock_timeout 60000;
    declare @found table (name nvarchar(128) not null primary key, reason nvarchar(2048) null, is_done bit not null);
    declare @name nvarchar(128), @of nvarchar(300), @sql nvarchar(max), @reason nvarchar(2048), @message nvarchar(2048), @held nvarchar(2048), @failed int, @all int;
    if @@trancount > 0
        throw 77100, N'changefeed 77100: please call this procedure outside of any transaction (maintain_feeds)', 0;
    -- By the index of the names alone, which nobody locks who only changes a feed.
    insert into @found (name, is_done)
    select f.name, 0
    from <<schema>>.[feeds] as f with (index ([unique:feeds.name]), readcommittedlock, rowlock, readpast)
    where has_perms_by_name(concat(N'<<schema_in_text>>.', quotename(concat(N'purge_feed:', f.name))), N'OBJECT', N'EXECUTE') = 1;
    select top (1) @name = f.name from @found as f where f.is_done = 0 order by f.name;
    while @name is not null
    begin
        set @reason = null;
        set @held = null;
        -- The results do not name their feed. The output and the history of a job show this message.
        print concat(N'feed ', @name);
        begin try
            if @purge_before is null
            begin
                set @of = concat(N'<<schema_in_text>>.', quotename(concat(N'drain_feed:', @name)));
                set @sql = concat(N'exec ', @of, N' @lock_timeout = @lock_timeout');
                exec sys.sp_executesql @sql, N'@lock_timeout int', @lock_timeout = @lock_timeout;
            end
            else
            begin
                if (select f.floor_time from <<schema>>.[feeds] as f where f.name = @name) < @purge_before
                begin
                    set @of = concat(N'<<schema_in_text>>.', quotename(concat(N'seal_feed:', @name)));
                    set @sql = concat(N'exec ', @of, N' @until = @until, @lock_timeout = @lock_timeout');
                    exec sys.sp_executesql @sql, N'@until datetime2(3), @lock_timeout int', @until = @purge_before, @lock_timeout = @lock_timeout;
                end;
                set @of = concat(N'<<schema_in_text>>.', quotename(concat(N'purge_feed:', @name)));
                set @sql = concat(N'exec ', @of, N' @before = @before, @batch_rows = @batch_rows, @held = @held output');
                exec sys.sp_executesql @sql, N'@before datetime2(3), @batch_rows int, @held nvarchar(2048) output',
                    @before = @purge_before, @batch_rows = @batch_rows, @held = @held output;
                if @held is not null print @held;
            end;
        end try
        begin catch
            set @reason = error_message();
            if @@trancount > 0 rollback;
        end catch;
        update @found set is_done = 1, reason = @reason where name = @name;
        set @name = null;
        select top (1) @name = f.name from @found as f where f.is_done = 0 order by f.name;
    end;
    select @failed = count(f.reason), @all = count(*) from @found as f;
    if @failed = 0 return;
    -- All reasons share the length of a message.
    select @message = string_agg(convert(nvarchar(max), concat(N'"', f.name, N'": ', left(f.reason, 1600 / @failed))), N'; ') within group (order by f.name)
    from @found as f where f.reason is not null;
    set @message = concat(N'changefeed 77159: ', @failed, N' of ', @all, N' feeds were not ', case when @purge_before is null then N'drained' else N'purged' end,
        N': ', left(@message, 1700), N'. The others are done. Fix each problem; the next run continues');
    throw 77159, @message, 1;
end
