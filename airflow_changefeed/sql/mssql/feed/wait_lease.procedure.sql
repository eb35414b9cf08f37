-- Waits until a lease of these shards may have become free. Only wakes: request_leases decides.
-- A holder's session keeps an application lock named by its fencing token while it lives; whoever waits asks for it, shared.
-- @shards: JSON array. @milliseconds: to wait at most; never longer than a second.
-- result: is_free (a lease is free or ran out), result (of sp_getapplock: 1 somebody's session has ended, 0 nobody keeps a lock,
--     -1 the time is over), remaining (milliseconds until the first lease runs out; null where none is held).
-- errors: 77100 in a transaction. 77108 @milliseconds
-- permission: readers
create procedure <<schema>>.[wait_lease:<<name>>] (
    @consumer nvarchar(128),
    @shards nvarchar(max),
    @milliseconds int
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    set rowcount 0;
    begin try
        declare @now datetime2(3) = <<schema>>.[now](), @token bigint, @expires datetime2(3), @is_free bit = 0, @result int = -1;
        declare @resource nvarchar(255), @remaining bigint;
        declare @asked table (shard nvarchar(36) not null primary key);
        -- A lock that is waited for would keep all that the transaction has locked.
        if @@trancount > 0
            throw 77100, N'changefeed 77100: feed "<<name_text>>": please call this procedure outside of any transaction (wait_lease)', 0;
        if @milliseconds is null or @milliseconds < 0
            throw 77108, N'changefeed 77108: feed "<<name_text>>": @milliseconds must be 0 or more', 1;
        insert into @asked (shard)
        select distinct <<schema>>.[shard_text](convert(<<shard_type>>, j.value)) from openjson(@shards) as j;
        if exists (
            select 1 from @asked as a
            left join <<schema>>.[consumers] as c with (rowlock, readpast, readcommittedlock)
                on c.feed_id = <<feed_id>> and c.consumer = @consumer and c.shard = a.shard
            where c.shard is not null and (c.lease_holder is null or c.lease_expires <= @now)
        )
            set @is_free = 1;
        select top (1) @token = c.fencing_token, @expires = c.lease_expires
        from <<schema>>.[consumers] as c with (rowlock, readpast, readcommittedlock)
        inner join @asked as a on a.shard = c.shard
        where c.feed_id = <<feed_id>> and c.consumer = @consumer and c.lease_holder is not null and c.lease_expires > @now
        order by c.lease_expires, c.shard;
        set @remaining = datediff_big(millisecond, @now, @expires) + 1;
        if @milliseconds > 1000 set @milliseconds = 1000;
        if @remaining < @milliseconds set @milliseconds = @remaining;
        if @is_free = 0 and @token is not null
        begin
            set @resource = concat(N'changefeed/lease/', @token);
            exec @result = sp_getapplock @Resource = @resource, @LockMode = N'Shared', @LockOwner = N'Session', @LockTimeout = @milliseconds,
                @DbPrincipal = N'<<schema_text>>.locks';
            if @result >= 0 exec sp_releaseapplock @Resource = @resource, @LockOwner = N'Session', @DbPrincipal = N'<<schema_text>>.locks';
        end;
        select @is_free as is_free, @result as result, @remaining as remaining;
    end try
    begin catch
        if @@trancount > 0 rollback;
        throw;
    end catch;
end
