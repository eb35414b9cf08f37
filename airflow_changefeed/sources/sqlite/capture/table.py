# SPDX-License-Identifier: Apache-2.0
"""Reading a captured table in SQLite in ranges of its primary key."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import pyarrow as pa

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Column, counted
from airflow_changefeed.exceptions import ColumnTypeError, FeedSetupError
from airflow_changefeed.sources.base import SHARD_COLUMN
from airflow_changefeed.sources.base_capture import (
    KeyCondition,
    KeyRange,
    TableColumns,
    key_conditions,
    key_text,
    key_values,
)
from airflow_changefeed.sources.sqlite.capture.plan import shard_sql
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture, StoredTable
from airflow_changefeed.sources.sqlite.feed.arrow import Query, fields_of
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, columns_of, quote, shard_check


def key_names(table: StoredTable) -> str:
    """Return the columns of a table's key, as SQL has them in a select, an order or a row value."""
    return ", ".join(map(quote, table.key_columns))


def within(table: StoredTable, range_: KeyRange, conditions: Sequence[KeyCondition] = ()) -> str:
    """Return the condition that a row is in a range and a part; :func:`range_values` gives its values."""
    marks = ", ".join("?" * len(table.key_columns))
    ends = [
        f"({key_names(table)}) {compare} ({marks})"
        for compare, end in ((">", range_.after), ("<=", range_.upto))
        if end is not None
    ]
    ends += [f"{quote(one.column)} {one.operator} ?" for one in conditions]
    return f" where {' and '.join(ends)}" if ends else ""


def range_values(range_: KeyRange, conditions: Sequence[KeyCondition] = ()) -> tuple[object, ...]:
    """Return the values of :func:`within`."""
    ends = (range_.after, range_.upto)
    values = [value for end in ends if end is not None for value in key_values(end)]
    return (*values, *(one.value for one in conditions))


def key_behind(
    connection: sqlite3.Connection,
    capture: str,
    table: StoredTable,
    after: str | None,
    rows: int,
    conditions: Sequence[KeyCondition] = (),
) -> str | None:
    """
    Return the key so many rows behind another, in the order of the primary key; None if there are fewer.

    :raises ColumnTypeError: a key is a text that is not valid UTF-8.
    """
    range_, names = KeyRange(after), key_names(table)
    sql = (
        f"select {names} from {quote(table.name)}{within(table, range_, conditions)} "
        f"order by {names} limit 1 offset {rows - 1}"
    )
    try:
        found = connection.execute(sql, range_values(range_, conditions)).fetchone()
    except sqlite3.OperationalError as error:
        if "Could not decode to UTF-8" not in str(error):
            raise
        raise ColumnTypeError(
            f"table {table.name!r} of capture {capture!r}: a text in a key column is not valid UTF-8; "
            "correct the value",
            feed=capture,
            table=table.name,
        ) from None
    return None if found is None else key_text(found)


_WRONG_SHARD = -1


@dataclass(frozen=True, kw_only=True)
class TableQuery(Query):
    """
    The statement that reads a range of a captured table; -1 says that the shard's expression fails.

    :param number: of the table in the capture.
    :param conditions: of the part of the table that is read.
    """

    FIRST: ClassVar[tuple[str, ...]] = ("x",)

    capture: StoredCapture
    number: int
    range: KeyRange
    conditions: tuple[KeyCondition, ...] = ()

    @property
    def table(self) -> StoredTable:
        """What is captured of the table."""
        return self.capture.tables[self.number]

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """What inserts record, in the types of the events, then the shard where an expression gives it."""
        return self._own if isinstance(self._shard, int) else (*self._own, self._shard_column)

    @cached_property
    def _own(self) -> tuple[Column, ...]:
        types = {one.name: one.type for one in self.capture.fields}
        return tuple(Column(name, types[self.table.fields[name]]) for name in self._names)

    @cached_property
    def _shard(self) -> int | str:
        """The shard of all rows, or the expression that gives it."""
        shard = shard_sql(self.capture.spec.tables[self.number].shard)
        return shard if shard.startswith("(") else int(shard)

    @property
    def _shard_column(self) -> Column:
        is_text = self.capture.spec.shard_key_type == "uniqueidentifier"
        return Column(SHARD_COLUMN, "text" if is_text else "integer")

    @property
    def _names(self) -> Sequence[str]:
        return self.table.columns_for(Operation.INSERT)

    @cached_property
    def described(self) -> TableColumns:
        """What the stream gives."""
        columns = (*self._own, self._shard_column)
        schema = pa.schema(fields_of(columns))
        fields = {name: self.table.fields[name] for name in self._names}
        return TableColumns(self.capture.shape, schema, fields, self.tables.info.resource_version)

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The ends of the range, and the values of the conditions."""
        return range_values(self.range, self.conditions)

    @property
    def sql(self) -> str:
        """The statement, without an order: a range is read in the order of the key, or of the table."""
        values, cases = [quote(name) for name in self._names], []
        if isinstance(self._shard, str):
            check = shard_check(self.capture.spec.shard_key_type, self._shard)
            cases.append(f"when not ({check}) then {_WRONG_SHARD}")
            values.append(self._shard)
        cases += self.misfits(values[: len(self._own)])
        table = f"{quote(self.table.name)}{within(self.table, self.range, self.conditions)}"
        return f"select {self.selected(cases, values)} from {table}"

    @property
    def where(self) -> str:
        return f"table {self.table.name!r} of capture {self.capture.name!r}"

    @property
    def facts(self) -> dict[str, Any]:
        return {"feed": self.capture.name, "table": self.table.name}

    def batch(self, first: Sequence[Any], columns: Sequence[pa.Array]) -> pa.RecordBatch:
        shards = []
        if isinstance(self._shard, int):
            shards = [pa.repeat(pa.scalar(self._shard, pa.int64()), len(columns[0]))]
        return pa.RecordBatch.from_arrays([*columns, *shards], schema=self.described.schema)

    def place(self, identity: Any) -> str:
        return f"of a row with its key in {self.range}"

    def row_error(self, wrong: int, identity: Any, rows: int) -> Exception:
        return FeedSetupError(
            f"{self.where}: the shard of {counted(rows, 'row')} is not of type "
            f"{self.capture.spec.shard_key_type}; correct their keys",
            **self.facts,
        )


def table_query(
    tables: FeedTables, table: str, range_: KeyRange, where: str = "", *, cuts_fractions: bool
) -> TableQuery:
    """
    Return the statement that reads a range.

    :param where: conditions on the key.
    :raises FeedSetupError: the table cannot be read as the capture records it; names every reason.
    """
    capture = tables.captured
    known = [one.name for one in capture.tables]
    if table not in known:
        raise FeedSetupError(
            f"capture {capture.name!r} does not have table {table!r}; its tables are {', '.join(known)}",
            feed=capture.name,
            table=table,
        )
    query = TableQuery(
        tables=tables,
        capture=capture,
        number=known.index(table),
        range=range_,
        cuts_fractions=cuts_fractions,
    )
    problems = _problems(tables.connection, query)
    if problems:
        raise FeedSetupError(
            f"table {table!r} of capture {capture.name!r} cannot be read: {'; '.join(problems)}",
            feed=capture.name,
            table=table,
            problems=problems,
        )
    kinds = {field.name: field.type for field in query.described.schema}
    return replace(query, conditions=key_conditions(where, query.table.key_columns, kinds))


def _problems(connection: sqlite3.Connection, query: TableQuery) -> list[str]:
    there = {column.name: column.type for column, _ in columns_of(connection, query.table.name)}
    if not there:
        return ["it is missing; restore it"]
    problems = []
    if not query.capture.is_enabled:
        problems.append("the capture is disabled, so changes are not recorded; enable it again")
    if not query.table.key_columns:
        problems.append("it has no primary key; add a primary key, and create the capture again")
    changed = [
        one.name
        for one in query.columns
        if one.name != SHARD_COLUMN and (one.name not in there or there[one.name] != one.type)
    ]
    changed += query.table.names_since(query.capture.recorded(query.table))
    if changed:
        problems.append(
            f"columns {', '.join(map(repr, changed))} were changed, renamed or dropped after they were "
            f"recorded; refresh the capture: {shell('capture refresh', query.capture.name)}"
        )
    return problems


def cut(connection: sqlite3.Connection, query: TableQuery, rows: int) -> list[str]:
    """Return the key of every so many rows, in the order of the primary key."""
    bounds: list[str] = []
    after: str | None = None
    name, table, conditions = query.capture.name, query.table, query.conditions
    while (after := key_behind(connection, name, table, after, rows, conditions)) is not None:
        bounds.append(after)
    return bounds
