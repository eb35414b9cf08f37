# SPDX-License-Identifier: Apache-2.0
"""Catalog queries for SQL Server; each takes typed parameters and changes nothing."""

from __future__ import annotations

#: Parameter: the schema, quoted. CONTROL on the database shows everything.
SERVER = """
declare @schema nvarchar(300) = ?;
select
    convert(nvarchar(128), serverproperty('ProductVersion')) as product_version,
    convert(int, serverproperty('EngineEdition')) as engine_edition,
    convert(int, serverproperty('ProductMajorVersion')) as major_version,
    db_name() as database_name,
    user_name() as user_name,
    convert(int, d.is_read_committed_snapshot_on) as is_read_committed_snapshot_on,
    convert(int, d.delayed_durability) as delayed_durability,
    (select user_name(s.principal_id) from sys.schemas as s where quotename(s.name) = @schema)
        as schema_owner,
    case
        when has_perms_by_name(@schema, N'SCHEMA', N'VIEW DEFINITION') = 1
            or has_perms_by_name(db_name(), N'DATABASE', N'CONTROL') = 1 then 1
        else 0
    end as sees_all,
    case
        when has_perms_by_name(db_name(), N'DATABASE', N'VIEW DEFINITION') = 1
            or has_perms_by_name(db_name(), N'DATABASE', N'CONTROL') = 1 then 1
        else 0
    end as sees_roles
from sys.databases as d
where d.name = db_name();
"""

#: Parameter: the schema. Two columns are null if the object is not a module.
OBJECTS = """
declare @schema nvarchar(128) = ?;
select
    o.name,
    convert(int, m.uses_quoted_identifier) as uses_quoted_identifier,
    convert(int, m.uses_ansi_nulls) as uses_ansi_nulls
from sys.objects as o
left join sys.sql_modules as m on m.object_id = o.object_id
where o.schema_id = schema_id(@schema);
"""

#: Parameter: the schema.
TYPES = """
declare @schema nvarchar(128) = ?;
select t.name from sys.types as t where t.schema_id = schema_id(@schema) and t.is_user_defined = 1;
"""

#: No parameter.
ROLES = "select p.name from sys.database_principals as p where p.type = 'R';"

#: Parameter: the schema.
TABLES = """
declare @schema nvarchar(128) = ?;
select t.name, convert(int, t.lock_escalation) as lock_escalation
from sys.tables as t
where t.schema_id = schema_id(@schema);
"""

#: Parameter: the schema.
INDEXES = """
declare @schema nvarchar(128) = ?;
select
    t.name as table_name,
    i.name,
    i.index_id,
    convert(int, i.allow_page_locks) as allow_page_locks,
    convert(int, i.is_primary_key) as is_primary_key
from sys.indexes as i
inner join sys.tables as t on t.object_id = i.object_id
where t.schema_id = schema_id(@schema);
"""

#: Parameter: the schema.
SEQUENCES = """
declare @schema nvarchar(128) = ?;
select
    s.name,
    convert(int, s.is_cycling) as is_cycling,
    convert(int, s.is_cached) as is_cached,
    s.cache_size
from sys.sequences as s
where s.schema_id = schema_id(@schema);
"""

#: Parameter: a role.
MEMBER = """
declare @role nvarchar(128) = ?;
select is_rolemember(@role);
"""

#: Parameter: seconds. A transaction has a begin time in a database once it has written there; times are the
#: server's local time.
OPEN_TRANSACTIONS = """
declare @seconds int = ?;
select
    s.session_id,
    s.login_name,
    s.host_name,
    s.program_name,
    datediff_big(second, d.database_transaction_begin_time, getdate()) as age
from sys.dm_tran_database_transactions as d
left join sys.dm_tran_session_transactions as x on x.transaction_id = d.transaction_id
left join sys.dm_exec_sessions as s on s.session_id = x.session_id
where d.database_id = db_id()
    and d.database_transaction_begin_time is not null
    and datediff_big(second, d.database_transaction_begin_time, getdate()) >= @seconds
order by age desc;
"""

#: No parameter; ``{schema}`` is the schema, quoted. All after triggers of captured tables.
CAPTURE_TRIGGERS = """
select
    t.capture_id,
    t.table_no,
    g.name,
    convert(int, g.is_disabled) as is_disabled,
    case when g.modify_date > t.trigger_modified then convert(varchar(19), g.modify_date, 120) end as altered,
    convert(int, m.uses_quoted_identifier) as uses_quoted_identifier,
    convert(int, m.uses_ansi_nulls) as uses_ansi_nulls,
    e.type_desc as operation,
    convert(int, e.is_first) as is_first
from {schema}.[readable_capture_tables] as t
inner join sys.triggers as g on g.parent_id = t.object_id and g.is_instead_of_trigger = 0
left join sys.sql_modules as m on m.object_id = g.object_id
left join sys.trigger_events as e on e.object_id = g.object_id;
"""

#: Likewise. The guard tables whose foreign keys prevent truncation of captured tables.
CAPTURE_GUARDS = """
select t.capture_id, t.table_no
from {schema}.[readable_capture_tables] as t
inner join sys.foreign_keys as k on k.referenced_object_id = t.object_id
inner join sys.tables as g on g.object_id = k.parent_object_id and g.name = t.guard_name;
"""

#: No parameter. Triggers of the database itself.
DATABASE_TRIGGERS = """
select g.name, convert(int, g.is_disabled) as is_disabled from sys.triggers as g where g.parent_class = 0;
"""

#: No parameter.
NESTED_TRIGGERS = """
select convert(int, o.value_in_use) as is_on from sys.configurations as o where o.name = N'nested triggers';
"""


def rights(count: int) -> str:
    """
    Return a query for a number of rights, answered in one row.

    Parameters: an object's quoted name and a permission for each. Null if the object is missing or invisible.
    """
    numbers = range(count)
    declared = ", ".join(f"@name{n} nvarchar(600) = ?, @permission{n} nvarchar(60) = ?" for n in numbers)
    asked = ", ".join(f"has_perms_by_name(@name{n}, N'OBJECT', @permission{n})" for n in numbers)
    return f"declare {declared}; select {asked};"
