-- The columns of all tables that the caller may see. Types are base types: those of alias types are resolved.
-- key_ordinal: in the primary key, from 1; null otherwise. may_unmask: whether the caller sees the values; null if it is not masked.
-- permission: public; the catalog shows each caller only what they may see
create or alter view <<schema>>.[table_columns]
as
select
    c.object_id,
    c.column_id,
    c.name,
    -- Users' types begin at 257; those of assemblies (240) have no base, and hierarchyid, geometry and geography share that number. By functions,
    -- as joins with the catalog of types cost more than all the rest.
    case when c.user_type_id > 256 and c.system_type_id <> 240 then type_name(c.system_type_id) else type_name(c.user_type_id) end as type,
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
left join sys.indexes as i on i.object_id = c.object_id and i.is_primary_key = 1
left join sys.index_columns as k on k.object_id = i.object_id and k.index_id = i.index_id and k.column_id = c.column_id and k.key_ordinal > 0;
