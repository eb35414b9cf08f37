-- Takes the lock under which feeds and captures are set up, upgraded and dropped; owned by the caller's transaction.
-- errors: 77101 another one has it for longer than a minute; transient
-- permission: internal
create procedure <<schema>>.[lock_setup]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @result int;
    exec @result = sp_getapplock
        @Resource = N'changefeed/setup', @LockMode = N'Exclusive', @LockOwner = N'Transaction', @LockTimeout = 60000;
    if @result < 0
        throw 77101, N'changefeed 77101: another set-up or upgrade is going on in this database; retry when it has ended', 1;
end
