-- The columns of all tables that the caller may see. Types are base types: those of alias types are resolved.
-- key_ordinal: in the primary key, from 1; null otherwise. may_unmask: whether the caller sees the values; null if it is not masked.
-- permission: public; the catalog shows each caller only what they may see
create or alter view <<schema>>.[table_columns]
as
select
    c.object_id,
    c.column_id,
    c.name,
    -- Some system types share another type's id, for example hierarchyid and geography.
    case when t.is_user_defined = 1 and t.is_assembly_type = 0 then b.name else t.name end as type,
    c.max_length,
    c.precision,
    c.scale,
    c.collation_name as collation,
    k.key_ordinal,
    c.encryption_type,
    c.is_masked,
    -- Per table since 2022, per database before, where the first is null.
    case when c.is_masked = 1 then isnull(
        has_perms_by_name(concat(quotename(object_schema_name(c.object_id)), N'.', quotename(object_name(c.object_id))), 'OBJECT', 'UNMASK'),
        has_perms_by_name(db_name(), 'DATABASE', 'UNMASK')) end as may_unmask
from sys.columns as c
inner join sys.types as t on t.user_type_id = c.user_type_id
left join sys.types as b on b.user_type_id = c.system_type_id
left join sys.indexes as i on i.object_id = c.object_id and i.is_primary_key = 1
left join sys.index_columns as k on k.object_id = i.object_id and k.index_id = i.index_id and k.column_id = c.column_id and k.key_ordinal > 0;
