-- Ensures that a consumer has a row for a shard. An existing row keeps its position, except that one which has completed nothing yet may
-- begin earlier. The change is recorded in the history. May run in the caller's transaction.
-- @after: exclusive; where the consumer begins. @by, @why: who and why, as free text. @began: how the beginning came about, of a new row:
--     implied or chosen.
-- errors: 77105 @after is beyond the shard's high-water time. 77135 the consumer belongs to another user. 77153 the consumer is not an
--     export
-- permission: readers
create or alter procedure <<schema>>.[begin_consumer:<<name>>] (
    @consumer nvarchar(128),
    @shard_id <<shard_type>>,
    @after binary(16),
    @by nvarchar(256),
    @why nvarchar(2000) = null,
    @began varchar(10) = 'implied'
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end;
        declare @shard nvarchar(36) = <<schema>>.[shard_text](@shard_id), @time datetime2(3), @found int, @owner nvarchar(128), @message nvarchar(2048);
        declare @before binary(16), @version bigint, @count int, @now datetime2(3);
        if @is_own = 1 begin transaction;
        -- A purge takes this lock too: it sees this consumer, or the consumer's first read sees the purge.
        select @time = s.time from <<schema>>.[state:<<name>>] as s with (updlock, rowlock) where s.shard_id = @shard_id;
        exec <<schema>>.[check_beyond:<<name>>] @shard_id = @shard_id, @cursor = @after;
        exec <<schema>>.[check_owner] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @consumer = @consumer;
        -- create_consumer begins the shards of its consumer before it writes the settings.
        if exists (select 1 from <<schema>>.[consumer_settings] as s where s.feed_id = <<feed_id>> and s.consumer = @consumer)
        begin
            set @message = concat(
                N'changefeed 77153: consumer "', @consumer, N'" of feed "<<name_text>>" already exists and is not an export. ',
                N'Nothing was changed; choose another name for the export');
            throw 77153, @message, 1;
        end;
        select @before = c.ulid, @version = c.resource_version from <<schema>>.[consumers] as c with (updlock, holdlock, rowlock)
        where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.shard = @shard;
        set @found = @@rowcount;
        -- A further shard gets the owner of the first one, even when an operator adds it.
        select top (1) @owner = c.owner from <<schema>>.[consumers] as c
        where c.feed_id = <<feed_id>> and c.consumer = @consumer
        order by c.shard;
        set @now = <<schema>>.[now]();
        if @found = 0 set @version = isnull((select d.resource_version from <<schema>>.[dropped_consumers] as d where d.feed = N'<<name_text>>' and d.consumer = @consumer), 0);
        set @version = @version + 1;
        if @found = 0
            insert into <<schema>>.[consumers] (feed_id, consumer, shard, start_ulid, ulid, began, ack, resource_version, moved_at, moved_by, owner)
            values (<<feed_id>>, @consumer, @shard, @after, @after, @began, @after, @version, @now, @by, isnull(@owner, user_name()));
        else
            update <<schema>>.[consumers]
            set start_ulid = @after,
                ulid = @after,
                ack = case when ack < @after then ack else @after end,
                resource_version = resource_version + 1,
                moved_at = @now,
                moved_by = @by
            where feed_id = <<feed_id>> and consumer = @consumer and shard = @shard
                and ulid = start_ulid and ahead = N'[]' and before = N'[]' and start_ulid > @after;
        set @count = @@rowcount;
        if @count > 0
            exec <<schema>>.[note_change]
                @feed_id = <<feed_id>>, @consumer = @consumer, @shard = @shard, @before = @before, @after = @after, @resource_version = @version, @at = @now, @by = @by, @why = @why;
        if @is_own = 1 commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
