-- Throws if the feed exists in another mode, with another shard key type, or for another primary key.
-- errors: 77111, 77119
-- permission: internal
create or alter procedure <<schema>>.[check_feed] (
    @feed_id int,
    @object_id int,
    @kind varchar(10),
    @shard_key_type sysname
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @message nvarchar(2048), @name nvarchar(128), @present varchar(10), @present_type varchar(16), @feed int;
    select @name = f.name, @present = f.kind, @present_type = f.shard_key_type from <<schema>>.[feeds] as f where f.feed_id = @feed_id;
    if @present <> @kind or @present_type <> @shard_key_type
    begin
        set @message = concat(N'changefeed 77111: feed "', @name, N'" already exists, as ', @present, N' with ', @present_type,
            N' shards; drop it first (drop_feed), which discards its order');
        throw 77111, @message, 1;
    end;
    set @feed = object_id(concat(N'<<schema_in_text>>.', quotename(concat(N'feed:', @name))));
    -- The table of a capture belongs to changefeed.
    if @kind = 'outbox' and @feed is not null and not exists (select 1 from <<schema>>.[captures] as c where c.name = @name) and (
        exists (
            select k.name from <<schema>>.[key_columns](@object_id) as k
            except
            select c.name from sys.columns as c where c.object_id = @feed
        )
        or (select count(*) from sys.columns as c where c.object_id = @feed) <> 2 + (select count(*) from <<schema>>.[key_columns](@object_id) as k)
        -- The feed has a timestamp (189) as binary(8) (173).
        or exists (
            select 1 from <<schema>>.[key_columns](@object_id) as k
            inner join sys.columns as t on t.object_id = @object_id and t.name = k.name
            inner join sys.columns as c on c.object_id = @feed and c.name = k.name
            where case t.system_type_id when 189 then 173 else t.system_type_id end <> c.system_type_id
                or t.max_length > c.max_length or t.precision <> c.precision or t.scale <> c.scale
        )
    )
    begin
        set @message = concat(N'changefeed 77119: feed "', @name, N'" was created for another primary key, or another type of it, than its table has now; ', N'drop the feed first, which discards its order, or restore the table''s key');
        throw 77119, @message, 1;
    end;
end
