-- Throws if tables cannot be created in a filegroup or with a compression, or if a table is stored in another way.
-- @filegroup, @compression: as for setup_feed; null is always right. @object_id: the table; null if it is not created yet.
-- errors: 77111, 77116
-- permission: internal
create or alter procedure <<schema>>.[check_storage] (
    @object_id int,
    @filegroup sysname,
    @compression sysname
)
as
begin
    set xact_abort, nocount on;
    set transaction isolation level read committed;
    declare @message nvarchar(2048), @usable nvarchar(max), @present sysname, @present_compression nvarchar(60);
    if @compression not in (N'page', N'row', N'none')
    begin
        set @message = concat(N'changefeed 77116: @compression must be page, row or none, not "', @compression, N'"');
        throw 77116, @message, 1;
    end;
    -- A table can be created in a filegroup without files, but its first writer would fail (error 622).
    select @usable = string_agg(convert(nvarchar(max), concat(N'"', g.name, N'"')), N', ') within group (order by g.name)
    from sys.filegroups as g
    where g.type = N'FG' and g.is_read_only = 0
        and exists (select 1 from sys.database_files as f where f.data_space_id = g.data_space_id);
    if @filegroup is not null and not exists (
        select 1 from sys.filegroups as g
        where g.name = @filegroup and g.type = N'FG' and g.is_read_only = 0
            and exists (select 1 from sys.database_files as f where f.data_space_id = g.data_space_id))
    begin
        set @message = concat(N'changefeed 77116: filegroup "', @filegroup, N'" not found in this database, or it has no file or is read-only; use one of ', left(@usable, 1500));
        throw 77116, @message, 1;
    end;
    select top (1) @present = d.name, @present_compression = lower(p.data_compression_desc)
    from sys.indexes as i
    inner join sys.data_spaces as d on d.data_space_id = i.data_space_id
    inner join sys.partitions as p on p.object_id = i.object_id and p.index_id = i.index_id
    where i.object_id = @object_id and i.index_id in (0, 1);
    if @present <> @filegroup or @present_compression <> @compression
    begin
        set @message = concat(N'changefeed 77111: table "', object_schema_name(@object_id), N'.', object_name(@object_id), N'" already exists, in filegroup "',
            @present, N'" with compression ', @present_compression, N', and is not moved; rebuild its primary key there yourself, or omit @filegroup and @compression');
        throw 77111, @message, 1;
    end;
end
