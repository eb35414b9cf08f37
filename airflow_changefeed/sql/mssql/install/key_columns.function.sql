-- The primary key of a table, as declared in the tables of its feed.
-- result: place (from 1), name, definition ("[name] type not null"), type_name.
create or alter function <<schema>>.[key_columns](@object_id int) returns table
as
return
select
    convert(int, k.key_ordinal) as place,
    c.name,
    b.name as type_name,
    convert(nvarchar(max), concat(
        quotename(c.name), N' ',
        case
            when b.name = N'timestamp' then N'binary(8)'
            when t.is_assembly_type = 1 and t.schema_id <> 4 then concat(quotename(schema_name(t.schema_id)), N'.', quotename(t.name))
            when t.is_assembly_type = 1 then t.name
            when b.name in (N'char', N'varchar', N'binary', N'varbinary') then concat(b.name, N'(', c.max_length, N')')
            when b.name in (N'nchar', N'nvarchar') then concat(b.name, N'(', c.max_length / 2, N')')
            when b.name in (N'decimal', N'numeric') then concat(b.name, N'(', c.precision, N', ', c.scale, N')')
            when b.name in (N'datetime2', N'time', N'datetimeoffset') then concat(b.name, N'(', c.scale, N')')
            else b.name
        end,
        case when c.collation_name is not null then concat(N' collate ', c.collation_name) end,
        N' not null')) as definition
from sys.indexes as i
inner join sys.index_columns as k on k.object_id = i.object_id and k.index_id = i.index_id
inner join sys.columns as c on c.object_id = k.object_id and c.column_id = k.column_id
inner join sys.types as t on t.user_type_id = c.user_type_id
left join sys.types as b on b.user_type_id = c.system_type_id
where i.object_id = @object_id and i.is_primary_key = 1 and k.key_ordinal > 0;
