-- Takes the lock for ordering, sealing or serialized writing in a shard; owned by the transaction.
-- The resource name is that of mssql-changefeed v2, so that an old and a new drain never overlap during an upgrade. For the same reason a
-- v2 feed keeps the principal public, with which any database user can block the shard; other feeds use the role users.
-- @lock_timeout: milliseconds, -1 waits forever. @lock_result: as for sp_getapplock; negative if not granted.
-- permission: internal
create or alter procedure <<schema>>.[feed_write_lock:<<name>>] (
    @shard_id <<shard_type>>,
    @lock_timeout int = -1,
    @lock_result int output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @resource nvarchar(255) = concat(N'changefeed/<<object_id>>/', @shard_id);
    exec @lock_result = sp_getapplock
        @Resource = @resource,
        @LockMode = N'Exclusive',
        @LockOwner = N'Transaction',
        @LockTimeout = @lock_timeout,
        @DbPrincipal = N'<<lock_principal>>';
end
