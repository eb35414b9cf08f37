-- Takes the lock for setting up, upgrading and dropping feeds and captures; owned by the caller's transaction.
-- @lock_timeout: milliseconds, -1 waits forever.
-- errors: 77101 another session holds it; transient. 77109 the caller is not a member of the role that may take it
-- permission: internal
create or alter procedure <<schema>>.[lock_setup] (@lock_timeout int = 60000)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @result int;
    exec @result = sp_getapplock
        @Resource = N'changefeed/setup', @LockMode = N'Exclusive', @LockOwner = N'Transaction', @LockTimeout = @lock_timeout,
        @DbPrincipal = N'<<schema_text>>.users';
    if @result = -999
        throw 77109, N'changefeed 77109: you may not acquire changefeed''s locks; ask a DBA to make you a member of the role <<schema_text>>.users', 1;
    if @result < 0
        throw 77101, N'changefeed 77101: another set-up or upgrade is running in this database; retry when it has finished', 1;
end
