-- Fills the caller's #waiting (shard_id) with the shards that have committed rows in the outbox, at a cost that grows with shards, not with
-- rows. Rows of open transactions are skipped. Shared locks only, which are compatible with those of a drain that has not yet deleted its
-- rows.
-- permission: internal
create or alter procedure <<schema>>.[waiting:<<name>>]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @shard_id <<shard_type>>, @last <<shard_type>>;
    delete from #waiting;
    select top (1) @shard_id = o.shard_id
    from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
    order by o.shard_id;
    while @shard_id is not null
    begin
        insert into #waiting (shard_id) values (@shard_id);
        set @last = @shard_id;
        set @shard_id = null;
        select top (1) @shard_id = o.shard_id
        from <<schema>>.[outbox:<<name>>] as o with (readcommittedlock, rowlock, readpast)
        where o.shard_id > @last
        order by o.shard_id;
    end;
end
