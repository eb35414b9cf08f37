-- Takes the lock under which a shard is ordered, sealed, or written by a serialized writer; owned by the transaction.
-- The resource's name is that of mssql-changefeed v2, so that an old and a new drain never overlap during an upgrade; so a feed
-- of v2 keeps the principal public, with which every user of the database can hold the shard up. Another asks for the role of
-- those who may lock.
-- @lock_timeout: milliseconds, -1 waits for ever. @lock_result: as sp_getapplock's, negative when it was not got.
-- permission: internal
create procedure <<schema>>.[feed_write_lock:<<name>>] (
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
