# SPDX-License-Identifier: Apache-2.0
"""Differences between tables and their captured columns, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import replace

from airflow_changefeed.core.capture import Operation, TableCapture
from airflow_changefeed.core.feed import Column
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture, StoredTable
from airflow_changefeed.sources.sqlite.capture.triggers import renamed_columns
from airflow_changefeed.sources.sqlite.feed.names import columns_of, quote


def drift_of(connection: sqlite3.Connection, capture: StoredCapture) -> tuple[str, ...]:
    """Describe how a capture's tables have changed since it was enabled or refreshed."""
    types = {one.name: one.type for one in capture.fields}
    differences: list[str] = []
    for asked, table in zip(capture.spec.tables, capture.tables, strict=True):
        present = columns_of(connection, table.name)
        if not present:
            differences.append(f"table {table.name!r} is missing")
            continue
        renamed = _renamed(connection, table)
        differences += _gone(table, [column for column, _ in present], renamed)
        differences += _added(asked, table, [column for column, _ in present], set(renamed.values()))
        differences += _retyped(table, [column for column, _ in present], types)
        keys = tuple(column.name for column, place in sorted(present, key=lambda one: one[1]) if place)
        if keys != tuple(renamed.get(name, name) for name in table.key_columns):
            differences.append(
                f"the primary key of {table.name!r} is now ({', '.join(keys)}), previously "
                f"({', '.join(table.key_columns)})"
            )
    return tuple(differences)


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
    types = {one.name: one.type.casefold() for one in capture.captured_columns(before)}
    others = {field for one in capture.tables if one.name != before.name for field in one.fields.values()}
    # A field that no table has is of a former column, whose name another one got by a rename.
    recorded = {*before.fields.values()} | ({one.name for one in capture.fields} - others)
    filled = {
        name
        for (name,) in connection.execute(
            'select name from pragma_table_xinfo(?) where "notnull" or dflt_value is not null or hidden > 1',
            (now.name,),
        )
    }
    return [
        now.fields[name]
        for name, type_ in (now.types or {}).items()
        if types.get(name) != type_.casefold() and (name in filled or now.fields[name] in recorded)
    ]


def _renamed(connection: sqlite3.Connection, table: StoredTable) -> dict[str, str]:
    """Return the new names of renamed columns, which SQLite also renames in the triggers."""
    renamed: dict[str, str] = {}
    for name, made in table.triggers.items():
        row = connection.execute("select sql from sqlite_master where name = ?", (name,)).fetchone()
        renamed |= (renamed_columns(made, row[0]) if row else None) or {}
    return renamed


def renamed_capture(connection: sqlite3.Connection, capture: StoredCapture) -> StoredCapture:
    """
    Return a capture with the current names of its columns.

    Each keeps its field: events before and after a rename have the column's values in the same field.
    """
    asked, tables = [], []
    for one, table in zip(capture.spec.tables, capture.tables, strict=True):
        names = _renamed(connection, table)
        insert, update, delete = (_now(one.operations.get(operation), names) for operation in Operation)
        asked.append(replace(one, insert=insert, update=update, delete=delete))
        tables.append(
            replace(
                table,
                key_columns=_now(table.key_columns, names) or (),
                columns={operation: _now(own, names) or () for operation, own in table.columns.items()},
                fields=_renamed_fields(table, names),
                types=table.types and {names.get(name, name): one for name, one in table.types.items()},
            )
        )
    return replace(capture, spec=replace(capture.spec, tables=tuple(asked)), tables=tuple(tables))


def _now(columns: tuple[str, ...] | None, names: dict[str, str]) -> tuple[str, ...] | None:
    return None if columns is None else tuple(names.get(name, name) for name in columns)


def _renamed_fields(table: StoredTable, names: dict[str, str]) -> dict[str, str]:
    """Return the fields by current names; a former column with the same name is dropped."""
    changed = {*names, *names.values()}
    kept = {name: field for name, field in table.fields.items() if name not in changed}
    return kept | {now: table.fields[name] for name, now in names.items() if name in table.fields}


def _captured(table: StoredTable) -> set[str]:
    return {name for some in table.columns.values() for name in some}


def _gone(table: StoredTable, present: list[Column], renamed: dict[str, str]) -> Iterable[str]:
    names = {column.name for column in present}
    for name in sorted(_captured(table) - names):
        if name in renamed:
            yield (
                f"column {name!r} of {table.name!r} is now named {renamed[name]!r}; its events keep "
                f"{table.fields[name]!r}"
            )
        else:
            yield f"column {name!r} of {table.name!r} is missing"


def _added(
    asked: TableCapture, table: StoredTable, present: list[Column], renamed: set[str]
) -> Iterable[str]:
    """Yield the columns not captured by an operation that captures all columns."""
    for column in present:
        missing = [
            operation.value
            for operation, chosen in asked.operations.items()
            if not chosen and column.name not in (*table.columns[operation], *renamed)
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
