# SPDX-License-Identifier: Apache-2.0
"""
A captured table as it is now: what can be read of it, by which key, and what would not fit its events.

A range of a key compares each column with a variable of the column's own type, so that the server seeks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from airflow_changefeed.core.capture import CaptureShape, Operation
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Column
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.base_capture import KeyCondition, key_conditions
from airflow_changefeed.sources.mssql.capture.info import Named, recorded_drift
from airflow_changefeed.sources.mssql.capture.registry import (
    ASKED,
    RECORDED,
    Registry,
    Row,
    load_capture,
    table_name,
)
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.catalog import column_refusal, columns_sql, load_feed
from airflow_changefeed.sources.mssql.feed.feed import Declared, MssqlFeed, declared, parse, stored_type
from airflow_changefeed.sources.mssql.feed.mapping import Exported, exported_columns
from airflow_changefeed.sources.mssql.names import quote

#: Most characters of an nvarchar that is not max.
_MOST_WIDE = 4_000


@dataclass(frozen=True)
class KeyForm:
    """
    How values of a type travel.

    :param select: T-SQL of the value, with ``{c}`` for the column; gives a number, text or bytes.
    :param variable: type of the variable that takes it back.
    :param back: T-SQL of the variable's value, with ``?`` for what was selected.
    :param compared: T-SQL that the column is compared with, with ``{v}`` for the variable and ``{n}`` for the
        column's collation.
    """

    select: str
    variable: str
    back: str
    compared: str = "{v}"


def _number(found: Declared) -> KeyForm:
    return KeyForm("convert(bigint, {c})", found.name, "?")


def _float(found: Declared) -> KeyForm:
    # The driver takes and gives all 53 bits.
    return KeyForm("convert(float, {c})", found.name, "?")


def _decimal(found: Declared) -> KeyForm:
    type_ = f"{found.name}({found.length}, {found.scale})"
    return KeyForm("convert(varchar(60), {c})", type_, f"convert({type_}, convert(varchar(60), ?))")


def _money(found: Declared) -> KeyForm:
    # As a decimal: the text of money itself is rounded unless its style is known to the server.
    back = f"convert({found.name}, convert(decimal(19, 4), convert(varchar(60), ?)))"
    return KeyForm("convert(varchar(60), convert(decimal(19, 4), {c}))", found.name, back)


def _time(found: Declared) -> KeyForm:
    type_ = found.name if found.length is None else f"{found.name}({found.length})"
    return KeyForm("convert(varchar(60), {c}, 121)", type_, f"convert({type_}, convert(varchar(60), ?), 121)")


def _uuid(found: Declared) -> KeyForm:
    return KeyForm("convert(varchar(36), {c})", found.name, f"convert({found.name}, convert(varchar(36), ?))")


def _same(found: Declared) -> KeyForm:
    type_ = f"{found.name}({found.length})"
    return KeyForm("{c}", type_, f"convert({type_}, ?)")


def _narrow(found: Declared) -> KeyForm:
    # A variable has the code page of the database: only Unicode keeps the characters of the column's own.
    type_ = f"nvarchar({min(found.length or 1, _MOST_WIDE)})"
    compared = f"convert({found.name}({found.length}), {{v}} collate {{n}})"
    return KeyForm(f"convert({type_}, {{c}})", type_, f"convert({type_}, ?)", compared)


def _hierarchy(found: Declared) -> KeyForm:
    back = "convert(hierarchyid, convert(varbinary(892), ?))"
    return KeyForm("cast({c} as varbinary(892))", found.name, back)


_FORMS: dict[str, Callable[[Declared], KeyForm]] = {
    **dict.fromkeys(("bit", "tinyint", "smallint", "int", "bigint"), _number),
    **dict.fromkeys(("float", "real"), _float),
    **dict.fromkeys(("decimal", "numeric"), _decimal),
    **dict.fromkeys(("money", "smallmoney"), _money),
    **dict.fromkeys(("date", "time", "datetime", "datetime2", "smalldatetime", "datetimeoffset"), _time),
    "uniqueidentifier": _uuid,
    **dict.fromkeys(("nchar", "nvarchar", "binary", "varbinary"), _same),
    **dict.fromkeys(("char", "varchar"), _narrow),
    "hierarchyid": _hierarchy,
}


def key_form(column: Column) -> KeyForm | None:
    """Return how values of a column travel; None if they cannot travel unchanged."""
    found = parse(Column(column.name, stored_type(column)))
    form = None if found.is_max else _FORMS.get(found.name)
    return form and form(found)


@dataclass(frozen=True)
class KeyColumn:
    """A column of a primary key, in the order of its index."""

    column: Column
    form: KeyForm
    collation: str | None = None
    is_descending: bool = False

    @property
    def name(self) -> str:
        """The column of table ``t`` in a statement."""
        return f"t.{quote(self.column.name)}"

    @property
    def selected(self) -> str:
        """What is selected of it as a value that travels."""
        return self.form.select.replace("{c}", self.name)

    @property
    def ordered(self) -> str:
        """How the index orders by it."""
        return f"{self.name} desc" if self.is_descending else self.name

    def declared(self, variable: str) -> str:
        """Return the declaration of a variable that takes a value back."""
        return f"{variable} {self.form.variable} = {self.form.back}"

    def compared(self, operator: str, variable: str) -> str:
        """
        Compare the column with a variable.

        :param operator: as in the index's order: ``<`` is before it.
        """
        if self.is_descending:
            operator = operator.translate(_FLIPPED)
        value = self.form.compared.replace("{v}", variable).replace("{n}", self.collation or "")
        return f"{self.name} {operator} {value}"


_FLIPPED = str.maketrans("<>", "><")


def declarations(keys: Sequence[KeyColumn], prefix: str) -> list[str]:
    """Return the declarations of the variables ``@<prefix>0`` and on, which take a key back."""
    return [key.declared(f"@{prefix}{number}") for number, key in enumerate(keys)]


def bound(keys: Sequence[KeyColumn], operator: str, prefix: str) -> str:
    """
    Return the condition that a row's key is before or behind the variables' key, in the index's order.

    With several columns the first one is compared by itself, too, so that the server can seek by it.

    :param operator: ``>`` or ``<=``; equal keys belong to what is before.
    """
    variables = [f"@{prefix}{number}" for number in range(len(keys))]
    strict = operator[0]
    condition = keys[-1].compared(operator, variables[-1])
    for key, variable in reversed(list(zip(keys[:-1], variables[:-1], strict=True))):
        condition = f"({key.compared(strict, variable)} or ({key.compared('=', variable)} and {condition}))"
    if len(keys) == 1:
        return condition
    return f"{keys[0].compared(f'{strict}=', variables[0])} and {condition}"


def condition_declarations(keys: Sequence[KeyColumn], conditions: Sequence[KeyCondition]) -> list[str]:
    """Return the declarations of the variables ``@w0`` and on, which take the values of conditions."""
    by_name = {key.column.name: key for key in keys}
    return [by_name[one.column].declared(f"@w{number}") for number, one in enumerate(conditions)]


def condition_values(conditions: Sequence[KeyCondition]) -> list[int | str]:
    """Return the values of conditions as they travel: whole numbers, the others as text."""
    # Not 1E-7, which is no decimal for the server.
    texts = [f"{one.value:f}" if isinstance(one.value, Decimal) else one.value for one in conditions]
    return [one if isinstance(one, int) else str(one) for one in texts]


def conditions_sql(conditions: Sequence[KeyCondition]) -> list[str]:
    """Return what compares the columns of conditions with their variables."""
    return [f"t.{quote(one.column)} {one.operator} @w{number}" for number, one in enumerate(conditions)]


@dataclass(frozen=True)
class TableFacts:
    """
    What registry and catalog say of a captured table.

    :param capture: row of ``captures``; likewise ``table``, and ``captured``: its columns.
    :param stored: columns of the capture's own table, which has the events' rows.
    :param present: columns of the captured table; empty if this login does not see it.
    :param indexes: columns of its primary key and of what its rows are stored by.
    :param changing: its computed columns that change without a write.
    :param access: what this login may do, and the table's present name.
    """

    capture: Row
    table: Row
    captured: Sequence[Row]
    stored: Sequence[Row]
    present: Sequence[Row]
    indexes: Sequence[Row]
    changing: Sequence[str]
    access: Row

    @property
    def full(self) -> str:
        """The table's quoted name."""
        return f"{quote(self.table['table_schema'])}.{quote(self.table['table_name'])}"

    @property
    def keys(self) -> list[Row]:
        """The columns of the primary key, in the order of its index."""
        own = [row for row in self.indexes if row["is_primary_key"] and row["key_ordinal"]]
        return sorted(own, key=lambda row: int(row["key_ordinal"]))


@dataclass(frozen=True)
class SourceTable:
    """
    A captured table whose rows fit its events.

    :param name: in the capture.
    :param full: quoted.
    :param index: of the primary key.
    :param exported: its columns, of table ``t`` in a statement.
    :param shard: T-SQL of a row's shard, over the columns of the key.
    """

    feed: MssqlFeed
    name: str
    full: str
    shape: CaptureShape
    index: str
    keys: tuple[KeyColumn, ...]
    exported: tuple[Exported, ...]
    shard: str

    @property
    def fields(self) -> dict[str, str]:
        """The field of the events' rows for each exported column."""
        own = self.shape.tables[self.name].columns[Operation.INSERT]
        return {one.field.name: own[one.column.name] + one.part.suffix for one in self.exported}

    def conditions(self, where: str) -> tuple[KeyCondition, ...]:
        """
        Return conditions on its key.

        :raises InvalidArgumentError: they do not suit the key; has all reasons.
        """
        kinds = {one.field.name: one.field.type for one in self.exported}
        return key_conditions(where, [key.column.name for key in self.keys], kinds)


def load_table(session: Session, schema: str, capture: str, table: str) -> SourceTable:
    """
    Return a captured table as it is now.

    :raises CaptureNotFoundError: the capture does not exist.
    :raises FeedSetupError: the capture does not have the table, or its rows cannot be read so that they fit
        its events; names every reason.
    """
    registry, row = load_capture(session, schema, capture)
    feed = load_feed(session, schema, capture, is_fresh=True)
    own = _table_row(registry, row, table)
    facts = _load_facts(session, schema, feed, row, own, registry.columns_of(own))
    problems = list(table_problems(facts))
    if problems:
        raise FeedSetupError(
            f"table {table!r} of capture {capture!r} cannot be read together with its events: "
            f"{'; '.join(problems)}",
            feed=capture,
            table=table,
            problems=problems,
        )
    return source_table(feed, registry.shape(row), facts)


def source_table(feed: MssqlFeed, shape: CaptureShape, facts: TableFacts) -> SourceTable:
    """Return the table of facts without problems."""
    name, present = table_name(facts.table), Named(facts.present)
    stored = Named(facts.stored)
    columns = {
        Column(own, declared(stored[field])): f"t.{quote(present[own]['name'])}"
        for own, field in shape.tables[name].columns[Operation.INSERT].items()
    }
    exported = exported_columns(feed, list(columns))
    return SourceTable(
        feed,
        name,
        facts.full,
        shape,
        facts.keys[0]["index_name"],
        tuple(key for key in map(_key_column, facts.keys) if key),
        tuple(replace(one, source=columns[one.column]) for one in exported),
        facts.table["shard"],
    )


def _table_row(registry: Registry, capture: Row, table: str) -> Row:
    names = {table_name(row): row for row in registry.tables_of(capture)}
    if table not in names:
        raise FeedSetupError(
            f"capture {capture['name']!r} does not have table {table!r}; it has {', '.join(names)}",
            feed=capture["name"],
            table=table,
        )
    return names[table]


# ---- what does not fit


def table_problems(facts: TableFacts) -> Iterator[str]:
    """Name every reason why a table's rows and its events do not give its later states."""
    if not facts.capture["is_enabled"]:
        yield "the capture is disabled, so changes leave no event; enable it again"
    for operation, asked in ASKED.items():
        if facts.table[asked] is None:
            yield f"{operation.value}s are not captured; enable a capture of all operations"
    access = facts.access
    if not access["may_select"] or not facts.present:
        yield (
            f"this login may not read it, or it was dropped; ask a DBA for: grant select on {facts.full} to "
            f"{quote(access['user_name'])} (no role of changefeed includes it)"
        )
        return
    yield from _drift_problems(facts)
    yield from _hidden_problems(facts)
    yield from _key_problems(facts)
    yield from _moving_problems(facts)


def _drift_problems(facts: TableFacts) -> Iterator[str]:
    words = list(recorded_drift(facts.captured, facts.present, facts.stored))
    if facts.access["is_renamed"]:
        words.insert(0, f"the table is now named {facts.access['name']}")
    if words:
        yield f"{'; '.join(words)}: refresh the capture: {shell('capture refresh', facts.capture['name'])}"


def _hidden_problems(facts: TableFacts) -> Iterator[str]:
    """Name what shows this login other rows or values than there are, or than were written."""
    if facts.access["is_filtered"]:
        yield (
            "row-level security may hide rows, and hidden rows may change without an event; capture a "
            "table without row-level security"
        )
    inserted = Named([row for row in facts.captured if row[RECORDED[Operation.INSERT]]])
    for row in facts.present:
        reason = column_refusal(row) if inserted.find(row["name"]) else None
        if reason:
            yield f"column {row['name']} {reason}"
    for name in facts.changing:
        if inserted.find(name):
            yield (
                f"column {name} is computed and not deterministic, so its values change without an "
                "event; make the column persisted, or refresh the capture without it"
            )


def _key_problems(facts: TableFacts) -> Iterator[str]:
    if not facts.keys:
        yield "it has no primary key, which a read in ranges needs; add a primary key and refresh the capture"
    present = Named(facts.present)
    for row in facts.keys:
        if _key_column(row) is None:
            yield (
                f"column {row['name']} of its primary key has type {declared(present[row['name']])}, "
                "whose values cannot delimit a range; use a key of another type"
            )


def _moving_problems(facts: TableFacts) -> Iterator[str]:
    """Name the columns whose change moves a row, perhaps past the read, without an event."""
    recorded = Named(
        [row for row in facts.captured if row[RECORDED[Operation.INSERT]] and row[RECORDED[Operation.UPDATE]]]
    )
    moving = dict.fromkeys(row["name"] for row in facts.indexes if recorded.find(row["name"]) is None)
    for name in moving:
        yield (
            f"column {name} decides where a row is stored (primary key, clustered index or partition), and "
            "is not captured for inserts and updates, so a row may move without an event; capture it"
        )


def _key_column(row: Row) -> KeyColumn | None:
    column = Column(row["name"], declared(row))
    form = key_form(column)
    if form is None:
        return None
    return KeyColumn(column, form, row["collation"], bool(row["is_descending"]))


# ---- what the catalog says


def _load_facts(
    session: Session, schema: str, feed: MssqlFeed, capture: Row, table: Row, captured: Sequence[Row]
) -> TableFacts:
    access, present, indexes, changing = session.results(
        FACTS.format(schema=quote(schema), columns=columns_sql(schema, "readable_capture_tables")),
        f"{quote(table['table_schema'])}.{quote(table['table_name'])}",
        table["capture_id"],
        table["table_no"],
    )
    return TableFacts(
        capture,
        table,
        captured,
        session.columns[schema, feed.feed_id, feed.name],
        present,
        indexes,
        [row["name"] for row in changing],
        access[0],
    )


#: Access, columns, columns of indexes, computed columns. A compatible server may lack the views of row-level
#: security. A heap (index 0) may have partitions.
FACTS = """
declare @name nvarchar(600) = ?, @capture_id int = ?, @table_no smallint = ?;
declare @object_id int, @is_filtered bit = 0, @is_renamed bit = 0;
select
    @object_id = x.object_id,
    @is_renamed = case
        when object_schema_name(x.object_id) <> x.table_schema collate database_default
            or object_name(x.object_id) <> x.table_name collate database_default then 1
        else 0
    end
from {schema}.[readable_capture_tables] as x
where x.capture_id = @capture_id and x.table_no = @table_no;
if object_id(N'sys.security_policies') is not null
    select @is_filtered = 1
    from sys.security_predicates as p
    inner join sys.security_policies as s on s.object_id = p.object_id
    where p.target_object_id = @object_id and p.predicate_type = 0 and s.is_enabled = 1;
select
    user_name() as user_name,
    has_perms_by_name(@name, N'OBJECT', N'SELECT') as may_select,
    @is_filtered as is_filtered,
    @is_renamed as is_renamed,
    concat(object_schema_name(@object_id), N'.', object_name(@object_id)) as name;
{columns} where x.capture_id = @capture_id and x.table_no = @table_no order by c.column_id;
select
    i.name as index_name,
    convert(int, i.is_primary_key) as is_primary_key,
    convert(int, k.key_ordinal) as key_ordinal,
    convert(int, k.is_descending_key) as is_descending,
    c.name, c.type, c.max_length, c.precision, c.scale, c.collation
from sys.indexes as i
inner join sys.index_columns as k on k.object_id = i.object_id and k.index_id = i.index_id
inner join {schema}.[table_columns] as c on c.object_id = k.object_id and c.column_id = k.column_id
where i.object_id = @object_id and (i.is_primary_key = 1 or i.index_id in (0, 1))
    and (k.key_ordinal > 0 or k.partition_ordinal > 0);
select c.name
from sys.computed_columns as x
inner join {schema}.[table_columns] as c on c.object_id = x.object_id and c.column_id = x.column_id
where x.object_id = @object_id and x.is_persisted = 0
    and columnproperty(x.object_id, x.name, 'IsDeterministic') = 0;
"""
