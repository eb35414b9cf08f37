-- Throws if a table cannot become a feed.
-- errors: 77110 no primary key; required for an outbox, while serialized writers identify events by ULID. 77112 its name is too long.
--     77113 another table's feed has this name. 77114 a key column has a reserved name. 77115 a column begins with changefeed_
-- permission: internal
create or alter procedure <<schema>>.[check_table] (
    @object_id int,
    @kind varchar(10)
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @name nvarchar(300) = concat(object_schema_name(@object_id), N'.', object_name(@object_id));
    declare @message nvarchar(2048), @found nvarchar(1000), @length int = len(@name + N'.') - 1;
    -- The longest derived name is that of a constraint, def:outbox.order_sequence:T.
    if @length > 102
    begin
        set @message = concat(N'changefeed 77112: table "', @name, N'" has ', @length, N' characters with its schema, ', @length - 102,
            N' more than the limit of 102; rename it');
        throw 77112, @message, 1;
    end;
    if exists (
        select 1 from <<schema>>.[feeds] as f
        where f.name = @name and f.object_id <> @object_id and object_schema_name(f.object_id) is not null
            and concat(object_schema_name(f.object_id), N'.', object_name(f.object_id)) = @name
    )
    begin
        set @message = concat(N'changefeed 77113: a feed "', @name, N'" already exists for another table whose schema and name combine to the same text; rename one of the tables');
        throw 77113, @message, 1;
    end;
    if @kind = 'outbox' and not exists (select 1 from <<schema>>.[key_columns](@object_id) as k)
    begin
        set @message = concat(N'changefeed 77110: table "', @name, N'" has no primary key to identify its events; add one');
        throw 77110, @message, 1;
    end;
    select @found = string_agg(convert(nvarchar(max), k.name), N', ') from <<schema>>.[key_columns](@object_id) as k
    where @kind = 'outbox' and k.name collate Latin1_General_CI_AS in (N'ulid', N'shard_id', N'time_hint', N'order_sequence');
    if @found is not null
    begin
        set @message = concat(N'changefeed 77114: table "', @name, N'": key column ', @found, N' has a name reserved by the feed; rename it');
        throw 77114, @message, 1;
    end;
    select @found = string_agg(convert(nvarchar(max), c.name), N', ') from sys.columns as c
    where c.object_id = @object_id and c.name collate Latin1_General_CI_AS like N'changefeed[_]%'
        and not exists (select 1 from <<schema>>.[captures] as k where k.name = @name);
    if @found is not null
    begin
        set @message = concat(N'changefeed 77115: table "', @name, N'": column ', @found, N' begins with the reserved prefix "changefeed_"; rename it');
        throw 77115, @message, 1;
    end;
end
