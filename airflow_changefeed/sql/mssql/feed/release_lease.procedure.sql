-- Releases a lease; a token that is no longer the newest is ignored.
-- errors: 77135 the consumer belongs to another user
-- permission: readers
create procedure <<schema>>.[release_lease:<<name>>] (
    @consumer nvarchar(128),
    @shard_id <<shard_type>>,
    @fencing_token bigint
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @shard nvarchar(36) = <<schema>>.[shard_text](@shard_id);
        exec <<schema>>.[check_owner] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @consumer = @consumer;
        update <<schema>>.[consumers]
        set lease_holder = null, lease_expires = null, lease_since = null
        where feed_id = <<feed_id>> and consumer = @consumer and shard = @shard
            and fencing_token = @fencing_token;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
