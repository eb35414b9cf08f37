-- Creates a consumer. Idempotent: with the same settings its position stays unchanged. May run in the caller's transaction.
-- @settings: JSON with max_attempts (null: unlimited), on_poison (stop, park) and keep_log (seconds); null uses the defaults.
-- @begin_ulid: exclusive; where shards not listed, or created later, begin. @shards: JSON array of shards. @starts: where each begins,
--     exclusive, 16 bytes each, concatenated. @by: who creates it, as free text.
-- result: as list_consumers, for this consumer.
-- errors: 77101 lock timeout; transient. 77105 a start is beyond the shard's high-water time. 77108 arguments. 77135 it belongs to
--     another user. 77152 it exists with other settings. 77153 it is an export
-- permission: readers
create or alter procedure <<schema>>.[create_consumer:<<name>>] (
    @consumer nvarchar(128),
    @settings nvarchar(max) = null,
    @begin_ulid binary(16) = 0x00000000000000000000000000000000,
    @shards nvarchar(max) = N'[]',
    @starts varbinary(max) = null,
    @by nvarchar(256) = null,
    @lock_timeout int = 60000
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @is_own bit = case when @@trancount = 0 then 1 else 0 end, @message nvarchar(2048), @present nvarchar(max), @count int, @place int;
        declare @shard <<shard_type>>, @after binary(16), @maker nvarchar(256) = isnull(@by, user_name());
        declare @begun table (place int not null primary key, shard_id <<shard_type>> not null, after binary(16) not null);
        if isnull(@consumer, N'') = N'' or charindex(N':', @consumer) > 0
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @consumer must be a name of 1 to 128 characters without a colon', 1;
        if @settings is null set @settings = N'{"keep_log": 604800.0, "max_attempts": 10, "on_poison": "stop"}';
        if isjson(@settings) = 0
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @settings must be JSON', 1;
        insert into @begun (place, shard_id, after)
        select convert(int, j.[key]) + 1, convert(<<shard_type>>, j.value), substring(@starts, convert(int, j.[key]) * 16 + 1, 16)
        from openjson(@shards) as j
        where datalength(@starts) >= (convert(int, j.[key]) + 1) * 16;
        select @count = count(*) from openjson(@shards) as j;
        if isnull(datalength(@starts), 0) <> 16 * @count
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @starts must have 16 bytes for each of @shards', 1;
        if @is_own = 1 begin transaction;
        exec <<schema>>.[lock_consumers] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @lock_timeout = @lock_timeout;
        -- All of them before any consumer: a purge locks them in the same order, one at a time.
        select @count = count(*) from <<schema>>.[state:<<name>>] as s with (updlock, rowlock)
        where s.shard_id in (select b.shard_id from @begun as b);
        exec <<schema>>.[check_owner] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @consumer = @consumer;
        select @present = s.settings from <<schema>>.[consumer_settings] as s where s.feed_id = <<feed_id>> and s.consumer = @consumer;
        if @present is null and exists (select 1 from <<schema>>.[consumers] as c where c.feed_id = <<feed_id>> and c.consumer = @consumer)
        begin
            set @message = concat(
                N'changefeed 77153: consumer "', @consumer, N'" of feed "<<name_text>>" is an export: ', N'nothing was changed. Choose another name, or drop the export''s cursors (drop_consumer)');
            throw 77153, @message, 1;
        end;
        if @present <> @settings
        begin
            set @message = concat(
                N'changefeed 77152: consumer "', @consumer, N'" of feed "<<name_text>>" already exists with settings ', left(@present, 500), N', not ', left(@settings, 500),
                N': nothing was changed. Use the same settings, choose another name, or drop it (drop_consumer)');
            throw 77152, @message, 1;
        end;
        if @present is null
        begin
            select top (1) @place = b.place, @shard = b.shard_id, @after = b.after from @begun as b order by b.place;
            while @place is not null
            begin
                exec <<schema>>.[begin_consumer:<<name>>] @consumer = @consumer, @shard_id = @shard, @after = @after, @by = @maker, @began = 'chosen';
                delete from @begun where place = @place;
                set @place = null;
                select top (1) @place = b.place, @shard = b.shard_id, @after = b.after from @begun as b order by b.place;
            end;
            insert into <<schema>>.[consumer_settings] (feed_id, consumer, settings, begin_ulid, created_at, created_by, resource_version, owner)
            select
                <<feed_id>>, @consumer, @settings, @begin_ulid, <<schema>>.[now](), @maker,
                1 + isnull((select d.resource_version from <<schema>>.[dropped_consumers] as d where d.feed = N'<<name_text>>' and d.consumer = @consumer), 0),
                user_name();
        end;
        if @is_own = 1 commit;
        select N'<<name_text>>' as feed, s.consumer, s.settings, s.begin_ulid, s.created_at, s.created_by, s.resource_version
        from <<schema>>.[consumer_settings] as s
        where s.feed_id = <<feed_id>> and s.consumer = @consumer;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
