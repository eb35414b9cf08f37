# SPDX-License-Identifier: Apache-2.0
"""Differences between tables and their captured columns, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import replace

from airflow_changefeed.core.capture import CaptureSpec, Operation, TableCapture
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Column
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture, StoredTable, renamed
from airflow_changefeed.sources.sqlite.feed.names import columns_of, key_columns, quote


def drift_of(connection: sqlite3.Connection, capture: StoredCapture) -> tuple[str, ...]:
    """Describe how a capture's tables have changed since it was enabled or refreshed."""
    types = {one.name: one.type for one in capture.fields}
    differences: list[str] = []
    for asked, table in zip(capture.spec.tables, capture.tables, strict=True):
        present = columns_of(connection, table.name)
        if not present:
            differences.append(f"table {table.name!r} is missing")
            continue
        former, columns = capture.recorded(table), [column for column, _ in present]
        for name, now in sorted(table.names_since(former).items()):
            kept = f"; its events keep {table.fields[now]!r}" if now in table.fields else ""
            differences.append(f"column {name!r} of {table.name!r} is now named {now!r}{kept}")
        differences += _names_of_others(capture, table)
        differences += [
            f"column {name!r} of {table.name!r} is missing"
            for name in sorted(_captured(table) - {column.name for column in columns})
        ]
        differences += _added(asked, table, columns)
        differences += _retyped(table, columns, types)
        keys = tuple(column.name for column in key_columns(present))
        if keys != table.key_columns:
            differences.append(
                f"the primary key of {table.name!r} is now ({', '.join(keys)}), previously "
                f"({', '.join(former.key_columns)})"
            )
    return tuple(differences)


def check_names(capture: StoredCapture) -> None:
    """
    Raise if a column that is not recorded has the name of one that is: who reads events of the table by their
    columns' names would miss its changes.
    """
    problems = [one for table in capture.tables for one in _names_of_others(capture, table)]
    if problems:
        raise FeedSetupError(
            f"capture {capture.name!r}: its feed is not sealed, because {'; '.join(problems)}. Record the "
            f"present columns: {shell('capture refresh', capture.name)}",
            capture=capture.name,
            problems=problems,
        )


def _names_of_others(capture: StoredCapture, table: StoredTable) -> list[str]:
    """Describe the columns that have the name of a recorded one, and are not recorded as it was."""
    former = capture.recorded(table)
    names = table.names_since(former)
    return [
        f"column {name!r} of {table.name!r} is not the recorded one, which is now named {names[name]!r}, "
        "and its changes are not recorded"
        for name in capture.taken.get(table.name, ())
        if any(
            name in was and name.casefold() not in map(str.casefold, table.columns[operation])
            for operation, was in former.columns.items()
        )
    ]


def unrecorded_fields(
    connection: sqlite3.Connection, capture: StoredCapture, before: StoredTable, now: StoredTable
) -> list[str]:
    """
    Return the fields of a table's columns whose values in rows of before now no event has.

    :param capture: as it was before, with the current names of its columns.
    :param before: the table, as it was recorded.
    :param now: the table, as it is recorded from now on.
    """
    if connection.execute(f"select 1 from {quote(now.name)} limit 1").fetchone() is None:
        return []
    types = {one.name: one.type.casefold() for one in before.captured_columns}
    others = {field for one in capture.tables if one.name != before.name for field in one.fields.values()}
    # A field that no table has is of a former column, whose name another one got by a rename.
    recorded = {*before.fields.values()} | ({one.name for one in capture.fields} - others)
    return [
        now.fields[name]
        for name, type_ in now.types.items()
        if types.get(name) != type_.casefold()
        and (now.fields[name] in recorded or _has_values(connection, now.name, name))
    ]


def _has_values(connection: sqlite3.Connection, table: str, column: str) -> bool:
    sql = f"select 1 from {quote(table)} where {quote(column)} is not null limit 1"
    return connection.execute(sql).fetchone() is not None


def refreshed_spec(capture: StoredCapture) -> CaptureSpec:
    """Return what was asked of a capture, by the names that its columns have now."""
    asked = []
    for one, table in zip(capture.spec.tables, capture.tables, strict=True):
        names = table.names_since(capture.recorded(table))
        given = (one.operations.get(operation) for operation in Operation)
        insert, update, delete = (None if each is None else renamed(each, names) for each in given)
        asked.append(replace(one, insert=insert, update=update, delete=delete))
    return replace(capture.spec, tables=tuple(asked))


def _captured(table: StoredTable) -> set[str]:
    return {name for some in table.columns.values() for name in some}


def _added(asked: TableCapture, table: StoredTable, present: list[Column]) -> Iterable[str]:
    """Yield the columns not captured by an operation that captures all columns."""
    for column in present:
        missing = [
            operation.value
            for operation, chosen in asked.operations.items()
            if not chosen and column.name not in table.columns[operation]
        ]
        if missing:
            yield f"column {column.name!r} of {table.name!r} is not captured by {', '.join(missing)}"


def _retyped(table: StoredTable, present: list[Column], types: dict[str, str]) -> Iterable[str]:
    for column in present:
        recorded = types.get(table.fields.get(column.name, ""), column.type)
        if column.name in _captured(table) and recorded.casefold() != column.type.casefold():
            yield (
                f"column {column.name!r} of {table.name!r} is declared {column.type or 'without type'!r}, "
                f"but recorded as {recorded or 'without type'!r}"
            )
