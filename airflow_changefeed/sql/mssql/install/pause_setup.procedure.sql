-- Pauses before a set-up tries again to lock a captured table, so that the sessions queued behind it can go on. Call in a catch block, for the
-- errors 1205, 1222 and 77101 of a shard, outside any transaction.
-- @capture: its name. @lock_timeout: of the caller's session, in milliseconds, -1 for none. @until: when it gives up; set by the first call, to
-- that time from now, at most a minute.
-- errors: 77101 it has given up; transient
-- permission: internal
create or alter procedure <<schema>>.[pause_setup] (@capture nvarchar(128), @lock_timeout int, @until datetime2(3) output)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @message nvarchar(2048);
    if @lock_timeout not between 0 and 60000 set @lock_timeout = 60000;
    set @until = isnull(@until, dateadd(millisecond, @lock_timeout, sysutcdatetime()));
    if sysutcdatetime() >= @until
    begin
        set @message = concat(N'changefeed 77101: transactions or queries hold a captured table of "', @capture, N'", its events or a shard all the time, so nothing was changed. ',
            N'Retry when they have ended; sys.dm_tran_locks names their sessions');
        throw 77101, @message, 1;
    end;
    waitfor delay '00:00:01';
end
