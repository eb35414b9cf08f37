# SPDX-License-Identifier: Apache-2.0
"""
The tables of the bookkeeping: one way to read a row, and one to change it.

Each call is one statement in the transaction of its caller, who begins it with ``SqliteDatabase.write`` to
change rows: the lock that all writers share. A change may name the version and the fencing token that its
caller expects. Where the row has others, nothing is changed, and the row as it is says who was faster.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Generic, TypeVar

from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.consumer import MAX_BY, MAX_REASON
from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import to_milliseconds
from airflow_changefeed.exceptions import storable
from airflow_changefeed.sources.shared import Row

#: Texts that people and programs give, and how much of them is kept.
_LONGEST = {
    **dict.fromkeys(("moved_by", "created_by", "checked_by", "parked_by", "resolved_by", "begun_by"), MAX_BY),
    **dict.fromkeys(("reason", "note", "why", "error"), MAX_REASON),
    "holder": MAX_BY,
}
#: Of a number in SQLite, without its sign.
_BITS = 63
Value = TypeVar("Value")


@dataclass(frozen=True)
class Records(Generic[Value]):
    """
    A table of the bookkeeping.

    Conditions are values by column, or by column and operator: ``{"feed": "t", "ended_at_ms <": 5}``.

    :param name: of the table, behind ``changefeed.``.
    :param read: makes a value of a row, in which times have no ``_ms``.
    :param order: in which rows are found.
    """

    name: str
    read: Callable[[Row], Value]
    order: str = "1"

    @property
    def table(self) -> str:
        """The table, quoted."""
        return f'"changefeed.{self.name}"'

    def find(
        self,
        connection: sqlite3.Connection,
        where: Mapping[str, object] | None = None,
        *,
        also: str = "",
        limit: int = -1,
    ) -> list[Value]:
        """
        Return rows.

        :param where: conditions; a column without an operator whose value is None has none.
        :param also: a condition of SQL alone.
        :param limit: the most rows; -1 for all.
        """
        wanted = {name: value for name, value in (where or {}).items() if value is not None or " " in name}
        given = _asked(wanted)
        conditions = [condition for condition in (_conditions(given), also) if condition]
        chosen = f"where {' and '.join(conditions)}" if conditions else ""
        sql = f"select * from {self.table} {chosen} order by {self.order} limit ?"
        return [self.read(row) for row in records(connection, sql, (*given.values(), limit))]

    def add(self, connection: sqlite3.Connection, values: Mapping[str, object]) -> Value:
        """Add a row, and return it as it is stored; a value of None leaves its column as it is by default."""
        given = _stored({name: value for name, value in values.items() if value is not None})
        marks = ", ".join("?" * len(given))
        sql = f"insert into {self.table} ({', '.join(given)}) values ({marks}) returning *"
        (row,) = records(connection, sql, [*given.values()])
        return self.read(row)

    def change(
        self,
        connection: sqlite3.Connection,
        where: Mapping[str, object],
        values: Mapping[str, object],
        *,
        expected_version: int | None = None,
        fencing_token: int | None = None,
        keeps_version: bool = False,
    ) -> list[Value]:
        """
        Change the rows of a key, if they still are what the caller has seen; each gets its next version.

        :param where: the key, and what else must hold.
        :param expected_version: resource version that was seen; None for any.
        :param fencing_token: of the lease under which the row is changed; None without one.
        :param keeps_version: for what is no change to those who read the row, such as a lease.
        :return: the rows as they are now; empty if nothing was changed.
        """
        seen = {"resource_version": expected_version, "fencing_token": fencing_token}
        given = _asked({**where, **{name: value for name, value in seen.items() if value is not None}})
        changed = _stored(values)
        changes = [f"{name} = ?" for name in changed]
        if not keeps_version:
            changes.append("resource_version = resource_version + 1")
        sql = f"update {self.table} set {', '.join(changes)} where {_conditions(given)} returning *"
        return [self.read(row) for row in records(connection, sql, (*changed.values(), *given.values()))]

    def remove(self, connection: sqlite3.Connection, where: Mapping[str, object]) -> int:
        """Delete rows, and return how many there were."""
        given = _asked(where)
        sql = f"delete from {self.table} where {_conditions(given)}"
        return connection.execute(sql, [*given.values()]).rowcount


def records(connection: sqlite3.Connection, sql: str, parameters: Sequence[Any] = ()) -> list[dict[str, Any]]:
    """Return the rows of a statement by column name, that of a time without ``_ms``."""
    cursor = connection.execute(sql, parameters)
    names = [column[0].removesuffix("_ms") for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor]


def _conditions(where: Mapping[str, object]) -> str:
    return " and ".join(f"{name} ?" if " " in name else f"{name} = ?" for name in where)


def _asked(where: Mapping[str, object]) -> dict[str, object]:
    """Return conditions as the columns hold them; a number that no column can hold equals none of theirs."""
    return {
        name: float(value) if isinstance(value, int) and value.bit_length() > _BITS else value
        for name, value in _stored(where).items()
    }


def _stored(values: Mapping[str, object]) -> dict[str, object]:
    """Return values as the columns hold them; the column of a time may be named without ``_ms``."""
    stored: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, datetime):
            column, blank, operator = name.partition(" ")
            stored[f"{column.removesuffix('_ms')}_ms{blank}{operator}"] = to_milliseconds(value)
        else:
            stored[name] = _as_stored(name, value)
    return stored


def _as_stored(column: str, value: Any) -> object:
    if isinstance(value, Ulid):
        return value.bytes
    if column == "shard":
        return shard_text(value)
    if isinstance(value, tuple):
        return json.dumps(encode(value, tuple[UlidRange, ...]))
    if isinstance(value, Enum):
        return value.value
    return storable(value, _LONGEST[column]) if value and column in _LONGEST else value
