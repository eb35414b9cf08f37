# SPDX-License-Identifier: Apache-2.0
"""Ranges of a table's primary key, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.sources.base_snapshots import KeyRange, key_text, key_values
from airflow_changefeed.sources.key_conditions import KeyCondition
from airflow_changefeed.sources.sqlite.capture.registry import StoredTable
from airflow_changefeed.sources.sqlite.feed.names import quote


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
