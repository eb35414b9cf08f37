-- Brings every feed to this version, those of mssql-changefeed v2 too; feeds whose table is gone are left alone.
-- errors: as of upgrade_feed; what was upgraded until then stays, and repeating goes on
-- permission: as of setup_feed
create procedure <<schema>>.[upgrade_feeds]
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @found table (object_id int not null primary key, kind varchar(10) not null, ulid_column nvarchar(128) null, shard_column nvarchar(128) null);
    declare @object_id int, @kind varchar(10), @table nvarchar(300), @outbox bit, @serialized bit, @ulid_column sysname, @shard_column sysname;
    insert into @found (object_id, kind, ulid_column, shard_column)
    select
        t.object_id,
        case when f.kind is not null then f.kind
            when object_id(concat(N'<<schema_in_text>>.', <<schema>>.[quoted](concat(N'outbox:', s.name, N'.', t.name)))) is not null then 'outbox'
            else 'serialized' end,
        f.ulid_column,
        f.shard_column
    from sys.tables as t
    inner join sys.schemas as s on s.schema_id = t.schema_id
    left join <<schema>>.[feeds] as f on f.name = concat(s.name, N'.', t.name) collate database_default
    where (f.object_id = t.object_id or f.object_id is null or object_schema_name(f.object_id) is null)
        and object_id(concat(N'<<schema_in_text>>.', <<schema>>.[quoted](concat(N'state:', s.name, N'.', t.name)))) is not null;
    select top (1) @object_id = f.object_id from @found as f order by f.object_id;
    while @object_id is not null
    begin
        select
            @table = concat(<<schema>>.[quoted](object_schema_name(f.object_id)), N'.', <<schema>>.[quoted](object_name(f.object_id))),
            @outbox = case when f.kind = 'outbox' then 1 else 0 end,
            @serialized = case when f.kind = 'outbox' then 0 else 1 end,
            @ulid_column = f.ulid_column,
            @shard_column = f.shard_column
        from @found as f where f.object_id = @object_id;
        exec <<schema>>.[set_up]
            @table_name = @table, @outbox = @outbox, @serialized = @serialized, @ulid_column = @ulid_column, @shard_column = @shard_column,
            @must_exist = 1;
        delete from @found where object_id = @object_id;
        set @object_id = null;
        select top (1) @object_id = f.object_id from @found as f order by f.object_id;
    end;
end
