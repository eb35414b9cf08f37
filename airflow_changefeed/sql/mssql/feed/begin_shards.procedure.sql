-- Gives a consumer a row for each shard that has none: where its later shards begin, or at the shard's end if its high-water time is
-- lower. Must not run in a transaction.
-- @shards: JSON array. @lock_timeout: milliseconds.
-- errors: 77100 in a transaction. 77101 lock timeout; transient. 77135 the consumer belongs to another user. 77151 no such consumer
-- permission: readers (acquire_leases)
create or alter procedure <<schema>>.[begin_shards:<<name>>] (
    @consumer nvarchar(128),
    @shards nvarchar(max),
    @lock_timeout int
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    begin try
        declare @begin binary(16), @floor binary(16), @count int, @created_by nvarchar(256), @owner nvarchar(128), @version bigint;
        declare @asked table (shard nvarchar(36) not null primary key, shard_id <<shard_type>> not null);
        declare @begun table (shard nvarchar(36) not null primary key, begin_ulid binary(16) not null);
        if @@trancount > 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (begin_shards)', 0;
        insert into @asked (shard, shard_id)
        select distinct <<schema>>.[shard_text](convert(<<shard_type>>, j.value)), convert(<<shard_type>>, j.value) from openjson(@shards) as j;
        begin transaction;
        exec <<schema>>.[lock_consumers] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @lock_timeout = @lock_timeout;
        -- A purge takes this lock too: it sees these rows, or the consumer's settings, which imply them.
        select @count = count(*) from <<schema>>.[state:<<name>>] as s with (updlock, rowlock)
        where s.shard_id in (select a.shard_id from @asked as a);
        exec <<schema>>.[check_settings] @feed_id = <<feed_id>>, @feed = N'<<name_text>>', @consumer = @consumer;
        select @begin = s.begin_ulid, @created_by = s.created_by, @owner = s.owner from <<schema>>.[consumer_settings] as s
        where s.feed_id = <<feed_id>> and s.consumer = @consumer;
        -- A shard refuses a cursor beyond its high-water time; all its later events are after its head anyway.
        select @floor = <<schema>>.[previous_ulid](<<schema>>.[floor_ulid](f.floor_time)) from <<schema>>.[feeds] as f where f.feed_id = <<feed_id>>;
        if @floor > @begin set @floor = @begin;
        insert into @begun (shard, begin_ulid)
        select a.shard, @begin from @asked as a
        inner join <<schema>>.[state:<<name>>] as s on s.shard_id = a.shard_id
        where s.ulid > @begin
        union all
        select a.shard, <<schema>>.[previous_ulid](s.ulid) from @asked as a
        inner join <<schema>>.[state:<<name>>] as s on s.shard_id = a.shard_id
        where s.ulid <= @begin
        union all
        select a.shard, @floor from @asked as a
        where not exists (select 1 from <<schema>>.[state:<<name>>] as s where s.shard_id = a.shard_id);
        select @version = max(d.resource_version) from <<schema>>.[dropped_consumers] as d
        where d.feed = N'<<name_text>>' and d.consumer = @consumer;
        insert into <<schema>>.[consumers] (feed_id, consumer, shard, start_ulid, ulid, began, ack, resource_version, moved_at, moved_by, owner)
        select
            <<feed_id>>, @consumer, b.shard, b.begin_ulid, b.begin_ulid, 'chosen', b.begin_ulid, 1 + isnull(@version, 0), <<schema>>.[now](), @created_by, @owner
        from @begun as b
        where not exists (
            select 1 from <<schema>>.[consumers] as c where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.shard = b.shard
        );
        commit;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
