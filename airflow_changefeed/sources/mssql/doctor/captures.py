# SPDX-License-Identifier: Apache-2.0
"""Faults of captures in SQL Server: catalog queries, and pure functions over their rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass

from airflow_changefeed.core.capture import CaptureGap, Operation
from airflow_changefeed.core.fault import Fault, FaultKind, gap_remedy, not_checked, shell
from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.values import format_time
from airflow_changefeed.sources.mssql.capture.info import TableDrift, load_drift
from airflow_changefeed.sources.mssql.capture.registry import ASKED, Registry, Row, load_registry, table_name
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.names import quote

#: Name prefixes of all captures' triggers.
_OURS = "capture_"


def trigger_name(capture: Row, table: Row, operation: Operation) -> str:
    """Return the name of a trigger of a capture; it is in the captured table's schema."""
    return f"{_OURS}{operation.value}.{table['table_no']}:{capture['name']}"


def trigger_faults(
    capture: Row, table: Row, triggers: Sequence[Row], *, tells_order: bool = True
) -> Iterator[Fault]:
    """
    Find what prevents the triggers of a captured table from recording.

    :param triggers: all after triggers of the table: ``name``, ``is_disabled``, ``altered`` (time of a
        change since its creation, or null), ``uses_quoted_identifier``, ``uses_ansi_nulls``, ``operation``
        and ``is_first``.
    :param tells_order: whether the server reports which trigger fires first.
    """
    there = {row["name"].casefold(): row for row in triggers}
    remedy = gap_remedy(capture["name"])
    for operation in Operation:
        if table[ASKED[operation]] is None:
            continue
        name = trigger_name(capture, table, operation)
        row = there.get(name.casefold())
        full = f"{quote(table['table_schema'])}.{quote(name)}"
        on = f"{quote(table['table_schema'])}.{quote(table['table_name'])}"
        if row is None:
            yield _of_trigger(
                table, name, f"the trigger is missing: {operation.value}s are not recorded", remedy
            )
            continue
        if row["is_disabled"]:
            what = f"the trigger is disabled: {operation.value}s are not recorded"
            yield _of_trigger(table, name, what, f"enable trigger {full} on {on}. {remedy}")
        elif row["altered"] is not None:
            what = f"the trigger was altered, or disabled for a while, at {row['altered']} (server time)"
            yield _of_trigger(table, name, what, remedy)
        off = [setting for setting in ("quoted_identifier", "ansi_nulls") if row[f"uses_{setting}"] == 0]
        if off:
            what = f"the trigger was created with {' and '.join(off)} off, so writers may fail"
            yield _of_trigger(table, name, what, remedy)
        if tells_order and not row["is_first"]:
            yield from _order_fault(table, name, full, operation, triggers)


def _order_fault(
    table: Row, name: str, full: str, operation: Operation, triggers: Iterable[Row]
) -> Iterator[Fault]:
    """Yield a trigger that others may precede; a single trigger is always first."""
    word = operation.value.upper()
    others = [
        row
        for row in triggers
        if row["operation"] == word
        and not row["is_disabled"]
        and not row["name"].casefold().startswith(_OURS)
    ]
    if others:
        first = [row["name"] for row in others if row["is_first"]]
        takes = f"Set {first[0]} to order 'None', then: " if first else ""
        yield _of_trigger(
            table,
            name,
            "the trigger is not set to fire first, and "
            f"{', '.join(sorted(row['name'] for row in others))} may fire before it. Their changes "
            "would then be recorded before the change that fired them",
            f"{takes}exec sp_settriggerorder @triggername = N'{full.replace(chr(39), chr(39) * 2)}', "
            f"@order = 'First', @stmttype = '{word}'",
        )


def _of_trigger(table: Row, name: str, what: str, remedy: str) -> Fault:
    return Fault(FaultKind.CAPTURE_TRIGGER, f"trigger {name} on {table_name(table)}", what, remedy)


def gap_faults(gaps: Iterable[CaptureGap]) -> list[Fault]:
    """Yield unresolved gaps."""
    return [
        Fault(
            FaultKind.CAPTURE_GAP,
            f"capture {gap.capture}, table {gap.table}",
            f"changes may not have been recorded: {gap.reason} (gap {gap.number}, found at "
            f"{format_time(gap.found_at)}); nothing is sealed until the gap is resolved",
            gap_remedy(gap.capture),
        )
        for gap in gaps
    ]


def count_faults(capture: str, tables: Iterable[Row]) -> Iterator[Fault]:
    """
    Yield tables whose row count differs from the recorded one.

    :param tables: ``table_schema``, ``table_name``, ``rows`` (null if they could not be counted because
        the table was being changed all the time) and ``expected``.
    """
    for row in tables:
        what = f"capture {capture}, table {table_name(row)}"
        if row["rows"] is None:
            yield not_checked(
                f"the number of rows of {what}",
                "statements changed the table each time its rows were counted",
                "Run this command again while no statement changes the table; or allow row versions, "
                "with which nothing delays a count: alter database current set "
                "allow_snapshot_isolation on",
            )
        elif row["rows"] != row["expected"]:
            yield Fault(
                FaultKind.CAPTURE_GAP,
                what,
                f"the table has {counted(row['rows'], 'row')}, but {row['expected']} according to the "
                "recorded changes: some changes were not recorded",
                f"Run {shell('capture check', capture)}, which records a gap, then resolve the gap. If "
                "the check finds no gap, the server's row count is wrong; correct it with dbcc "
                "updateusage (0)",
            )


def drift_faults(drift: Iterable[TableDrift]) -> list[Fault]:
    """Yield tables that differ from their captured columns."""
    return [
        Fault(
            FaultKind.CAPTURE_DRIFT,
            f"capture {one.capture}, table {one.table}",
            "; ".join(one.words),
            f"To capture the current columns: {shell('capture refresh', one.capture)}",
        )
        for one in drift
        if one.words
    ]


def guard_faults(
    schema: str, capture: Row, table: Row, guarded: Iterable[tuple[int, int]]
) -> Iterator[Fault]:
    """
    Yield a table that can be truncated although its capture should prevent it.

    :param guarded: capture and number of the guarded tables.
    """
    if table["guard_name"] is None or (table["capture_id"], table["table_no"]) in set(guarded):
        return
    yield Fault(
        FaultKind.CAPTURE_GUARD,
        f"capture {capture['name']}, table {table_name(table)}",
        f"the table {schema}.{table['guard_name']}, or its foreign key, is missing: truncate and switch "
        "are no longer refused, and both bypass the triggers",
        shell("capture refresh", capture["name"]),
    )


def schema_guard_faults(schema: str, captures: Sequence[Row], triggers: Iterable[Row]) -> Iterator[Fault]:
    """
    Yield a missing or disabled guard of captured columns.

    :param captures: that are enabled.
    :param triggers: of the database: ``name`` and ``is_disabled``.
    """
    asked = [row["name"] for row in captures if row["guard_schema"]]
    name = f"{schema}_captures"
    found = [row for row in triggers if row["name"].casefold() == name.casefold()]
    if not asked or (found and not found[0]["is_disabled"]):
        return
    yield Fault(
        FaultKind.CAPTURE_GUARD,
        f"database trigger {name}",
        f"it is {'disabled' if found else 'missing'}: changes to captured columns are no longer "
        "refused, and they make writers fail",
        f"enable trigger {quote(name)} on database" if found else shell("capture refresh", asked[0]),
    )


def nested_trigger_faults(is_on: int | None) -> Iterator[Fault]:
    """
    Yield the fault that changes by triggers are not recorded.

    :param is_on: the server's option; None if not reported.
    """
    if is_on == 0:
        yield Fault(
            FaultKind.CAPTURE_NESTED_TRIGGERS,
            "the server",
            "its option 'nested triggers' is off: changes that other triggers make to captured tables are "
            "not recorded",
            "exec sp_configure 'nested triggers', 1; reconfigure",
        )


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

#: Parameters: the schema; the name of one outbox, or null for all; the least number. Rows that drains have
#: deleted and the server keeps for readers of row versions. Of 10,000 pages or more it reads a hundredth.
KEPT_ROWS = """
declare @schema sysname = ?, @outbox sysname = ?, @least bigint = ?;
select t.name, sum(i.version_ghost_record_count) as kept
from sys.tables as t
cross apply sys.dm_db_index_physical_stats(db_id(), t.object_id, 1, null, 'SAMPLED') as i
where t.schema_id = schema_id(@schema) and t.name like N'outbox:%' and t.name = isnull(@outbox, t.name)
group by t.name
having sum(i.version_ghost_record_count) >= @least
order by t.name;
"""

#: No parameter; ``{schema}`` is the schema, quoted. All after triggers of captured tables.
CAPTURE_TRIGGERS = """
select
    t.capture_id,
    t.table_no,
    g.name,
    convert(int, g.is_disabled) as is_disabled,
    case when charindex(
            concat(g.object_id, '@', convert(varchar(23), g.modify_date, 121)), t.trigger_modified) = 0
        then convert(varchar(19), g.modify_date, 120) end as altered,
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


@dataclass(frozen=True)
class CaptureCheck:
    """
    A check of captures.

    :param is_sql_server: whether the server is SQL Server itself: only it reports the order of triggers.
    :param sees_all: whether this login sees all objects of the database.
    """

    session: Session
    schema: str
    user: str
    is_sql_server: bool
    sees_all: bool

    def faults(self, feed_id: int | None) -> list[Fault]:
        """
        Find what is wrong.

        :param feed_id: only this capture; None for all.
        """
        registry = load_registry(self.session, self.schema, feed_id)
        if registry is None:
            return []
        drift = load_drift(self.session, self.schema, registry)
        unseen = {one.table for one in drift if not one.is_seen}
        return [
            *gap_faults([gap for row in registry.captures for gap in registry.gaps_in(row)]),
            *drift_faults(drift),
            *self._of_enabled(registry, unseen),
        ]

    def _of_enabled(self, registry: Registry, unseen: Set[str]) -> Iterator[Fault]:
        """
        Find what prevents enabled captures from recording.

        :param unseen: tables whose columns this login cannot see.
        """
        captures = [row for row in registry.captures if row["is_enabled"]]
        if not captures:
            return
        options = self.session.records(NESTED_TRIGGERS)
        yield from nested_trigger_faults(next((row["is_on"] for row in options), None))
        if not self.is_sql_server:
            yield not_reported("the order of triggers, and the guard of captured columns")
        elif self.sees_all:
            triggers = self.session.records(DATABASE_TRIGGERS)
            yield from schema_guard_faults(self.schema, captures, triggers)
        pairs = [(capture, table) for capture in captures for table in registry.tables_of(capture)]
        schema = quote(self.schema)
        triggers = self.session.records(CAPTURE_TRIGGERS.format(schema=schema))
        rows = self.session.rows(CAPTURE_GUARDS.format(schema=schema))
        guarded = [(capture_id, table_no) for capture_id, table_no in rows]
        for (capture, table), is_seen in zip(pairs, self._sees([table for _, table in pairs]), strict=True):
            if is_seen:
                number = (table["capture_id"], table["table_no"])
                own = [row for row in triggers if (row["capture_id"], row["table_no"]) == number]
                yield from trigger_faults(capture, table, own, tells_order=self.is_sql_server)
                yield from guard_faults(self.schema, capture, table, guarded)
            else:
                name = table_name(table)
                yield not_checked(
                    f"the {'columns and ' if name in unseen else ''}triggers of {name}",
                    f"{self.user} lacks the permission to see them",
                    f"grant view definition on {_quoted(table)} to {quote(self.user)}, or ask a DBA to run "
                    "this command",
                )

    def _sees(self, tables: Sequence[Row]) -> list[bool]:
        """Return for each table whether this login sees its triggers."""
        questions = [value for table in tables for value in (_quoted(table), "VIEW DEFINITION")]
        (answers,) = self.session.rows(rights(len(tables)), *questions)
        return [self.sees_all or bool(answer) for answer in answers]


def _quoted(table: Row) -> str:
    return f"{quote(table['table_schema'])}.{quote(table['table_name'])}"


def not_reported(what: str) -> Fault:
    """Return the fault for what this server does not report."""
    remedy = "Nothing if this is not SQL Server; otherwise ask a DBA"
    return not_checked(what, "this server does not report it", remedy)
