-- Finds the ULID and shard columns of a table with serialized writers.
-- @ulid_column: as given; otherwise the column "ulid", otherwise a single-column key, of type binary(16); null without any.
-- @shard_column: as given; otherwise the column "shard" or "shard_id"; null if all events are in shard 0.
-- errors: 55000 a named column does not exist
-- permission: internal
create or alter procedure <<schema>>.[find_columns] (
    @object_id int,
    @kind varchar(10),
    @shard_key_type sysname,
    @ulid_column nvarchar(128) output,
    @shard_column nvarchar(128) output
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @message nvarchar(2048);
    declare @ulids table (name nvarchar(128) not null);
    declare @shards table (name nvarchar(128) not null);
    insert into @ulids (name)
    select c.name from sys.columns as c inner join sys.types as t on t.user_type_id = c.system_type_id
    where c.object_id = @object_id and t.name in (N'binary', N'varbinary') and c.max_length = 16;
    insert into @shards (name)
    select c.name from sys.columns as c inner join sys.types as t on t.user_type_id = c.system_type_id
    where c.object_id = @object_id and (
        (@shard_key_type = N'uniqueidentifier' and t.name = N'uniqueidentifier')
        or (@shard_key_type <> N'uniqueidentifier' and t.name in (N'tinyint', N'smallint', N'int', N'bigint')));
    if @ulid_column is not null and not exists (select 1 from @ulids as u where u.name = @ulid_column)
    begin
        set @message = concat(N'changefeed 55000: the table has no column "', @ulid_column, N'" of type binary(16) for @ulid_column');
        throw 55000, @message, 1;
    end;
    if @shard_column is not null and not exists (select 1 from @shards as s where s.name = @shard_column)
    begin
        set @message = concat(N'changefeed 55000: the table has no column "', @shard_column, N'" that can hold a shard of type ', @shard_key_type, N' for @shard_column');
        throw 55000, @message, 1;
    end;
    if @kind = 'outbox'
    begin
        set @ulid_column = null;
        set @shard_column = null;
        return;
    end;
    if @ulid_column is null select @ulid_column = u.name from @ulids as u where u.name collate Latin1_General_CI_AS = N'ulid';
    if @ulid_column is null
        select @ulid_column = max(u.name) from @ulids as u inner join <<schema>>.[key_columns](@object_id) as k on k.name collate database_default = u.name
        where (select count(*) from <<schema>>.[key_columns](@object_id) as n) = 1;
    if @shard_column is null select top (1) @shard_column = s.name from @shards as s where s.name collate Latin1_General_CI_AS in (N'shard', N'shard_id') order by s.name;
end
