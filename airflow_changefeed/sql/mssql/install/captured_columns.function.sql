-- The columns of a table, as recorded by a capture.
-- result: place (from 1), name, definition (type, without null), key_place (in the primary key, from 1; null otherwise), bytes
--     (expressions that distinguish two values, by bytes and lengths; ~ stands for the column), problem (why it cannot be captured, or
--     null).
create or alter function <<schema>>.[captured_columns](@object_id int) returns table
as
return
select
    c.column_id as place,
    c.name,
    convert(nvarchar(300), concat(
        case
            when b.name = N'timestamp' then N'binary(8)'
            when t.is_assembly_type = 1 then t.name
            when b.name in (N'char', N'varchar', N'binary', N'varbinary')
                -- A column that does not pad has shorter values, which one that does would lengthen.
                then concat(case when c.is_ansi_padded = 0 and b.name in (N'char', N'binary') then N'var' end, b.name, N'(', case when c.max_length = -1 then N'max' else convert(nvarchar(10), c.max_length) end, N')')
            when b.name in (N'nchar', N'nvarchar')
                then concat(b.name, N'(', case when c.max_length = -1 then N'max' else convert(nvarchar(10), c.max_length / 2) end, N')')
            when b.name in (N'decimal', N'numeric') then concat(b.name, N'(', c.precision, N', ', c.scale, N')')
            when b.name in (N'datetime2', N'time', N'datetimeoffset') then concat(b.name, N'(', c.scale, N')')
            else b.name
        end,
        case when c.collation_name is not null then concat(N' collate ', c.collation_name) end)) as definition,
    convert(int, k.key_ordinal) as key_place,
    convert(nvarchar(300), case
        when t.is_assembly_type = 1 then N'convert(varbinary(max), ~)'
        when b.name in (N'char', N'varchar', N'nchar', N'nvarchar') then
            concat(N'convert(varbinary(', case when c.max_length = -1 then N'max' else N'8000' end, N'), ~), datalength(~)')
        when b.name in (N'binary', N'varbinary') then N'~, datalength(~)'
        -- The two zeros are equal but differ in bytes.
        when b.name in (N'float', N'real') then N'convert(varbinary(8), ~)'
        when b.name = N'datetimeoffset' then N'~, datepart(tzoffset, ~)'
        when b.name = N'xml' then N'convert(nvarchar(max), ~)'
        when b.name = N'sql_variant' then
            N'convert(varbinary(8000), ~), convert(nvarchar(128), sql_variant_property(~, ''BaseType'')), convert(int, sql_variant_property(~, ''Scale''))'
        else N'~'
    end) as bytes,
    convert(nvarchar(300), case
        when c.encryption_type is not null then N'is encrypted by the client (Always Encrypted), so the server cannot record it'
        when c.is_masked = 1 then N'is masked, so recording it would reveal what the mask hides'
        when c.is_filestream = 1 then N'is a filestream column'
        when c.is_column_set = 1 then N'is a column set; capture its sparse columns themselves'
        when b.name in (N'text', N'ntext', N'image') then N'has a type that triggers cannot see; use varchar(max), nvarchar(max) or varbinary(max)'
        when t.is_assembly_type = 1 and (t.schema_id <> 4 or t.name not in (N'hierarchyid', N'geography', N'geometry')) then N'has a CLR type, which cannot be exported'
        when t.is_assembly_type = 0 and (b.name is null or b.name not in (
            N'bit', N'tinyint', N'smallint', N'int', N'bigint', N'real', N'float', N'decimal', N'numeric', N'money', N'smallmoney',
            N'date', N'time', N'datetime', N'datetime2', N'datetimeoffset', N'smalldatetime', N'char', N'varchar', N'nchar', N'nvarchar',
            N'binary', N'varbinary', N'timestamp', N'uniqueidentifier', N'xml', N'sql_variant')) then N'has a type that cannot be exported'
        when c.name collate Latin1_General_CI_AS like N'changefeed[_]%' then N'begins with the reserved prefix "changefeed_"; rename it'
    end) as problem
from sys.columns as c
inner join sys.types as t on t.user_type_id = c.user_type_id
left join sys.types as b on b.user_type_id = c.system_type_id
left join sys.indexes as i on i.object_id = c.object_id and i.is_primary_key = 1
left join sys.index_columns as k on k.object_id = i.object_id and k.index_id = i.index_id and k.column_id = c.column_id and k.key_ordinal > 0
where c.object_id = @object_id;
