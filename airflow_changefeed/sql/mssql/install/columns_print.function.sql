-- A fingerprint of the columns of a feed's table (of a capture: of its tables): numbers, names, types, nullability, keys and order. Null if the
-- caller does not see all of them.
-- @name, @object_id: of the feed.
create or alter function <<schema>>.[columns_print](@name nvarchar(128), @object_id int) returns varbinary(32)
as
begin
    declare @text nvarchar(max);
    -- A table hidden from the caller would look like one without columns.
    if user_name() <> N'dbo' and isnull(has_perms_by_name(db_name(), 'DATABASE', 'VIEW DEFINITION'), 0) = 0 and exists (
        select 1 from (
            select t.table_no, t.object_id from <<schema>>.[capture_tables] as t
            inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
            where c.name = @name
            union all
            select 0, @object_id where not exists (select 1 from <<schema>>.[captures] as c where c.name = @name)
        ) as t
        where isnull(has_perms_by_name(concat(quotename(object_schema_name(t.object_id)), N'.', quotename(object_name(t.object_id))), 'OBJECT', 'SELECT'), 0) = 0
            and isnull(has_perms_by_name(concat(quotename(object_schema_name(t.object_id)), N'.', quotename(object_name(t.object_id))), 'OBJECT', 'VIEW DEFINITION'), 0) = 0)
        return null;
    select @text = string_agg(convert(nvarchar(max), concat(
        t.table_no, N'/', c.column_id, N'/', c.name, N'/', c.system_type_id, N'/', c.user_type_id, N'/', c.max_length, N'/', c.precision, N'/', c.scale, N'/', c.is_nullable, N'/',
        c.collation_name, N'/', k.key_ordinal)), nchar(10)) within group (order by t.table_no, c.column_id)
    from (
        select t.table_no, t.object_id from <<schema>>.[capture_tables] as t
        inner join <<schema>>.[captures] as c on c.capture_id = t.capture_id
        where c.name = @name
        union all
        select 0, @object_id where not exists (select 1 from <<schema>>.[captures] as c where c.name = @name)
    ) as t
    inner join sys.columns as c on c.object_id = t.object_id
    left join sys.indexes as i on i.object_id = c.object_id and i.is_primary_key = 1
    left join sys.index_columns as k on k.object_id = i.object_id and k.index_id = i.index_id and k.column_id = c.column_id and k.key_ordinal > 0;
    return hashbytes('sha2_256', isnull(@text, N''));
end
