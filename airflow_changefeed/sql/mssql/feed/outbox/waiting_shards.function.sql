-- The shards that have committed rows in the outbox, at a cost that grows with shards, not with rows. Rows of open transactions are
-- skipped. Shared locks only, which are compatible with those of a drain that has not yet deleted its rows.
-- A function, because a temporary table of the caller's would tie the plan to the session (ADR 0005).
-- The caller has set read committed.
-- permission: internal
create or alter function <<schema>>.[waiting_shards:<<name>>]() returns @waiting table (shard_id <<shard_type>> not null primary key)
as
begin
    declare @shard_id <<shard_type>>, @last <<shard_type>>;
    select top (1) @shard_id = o.shard_id
    from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
    order by o.shard_id;
    while @shard_id is not null
    begin
        insert into @waiting (shard_id) values (@shard_id);
        set @last = @shard_id;
        set @shard_id = null;
        select top (1) @shard_id = o.shard_id
        from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
        where o.shard_id > @last
        order by o.shard_id;
    end;
    return;
end
