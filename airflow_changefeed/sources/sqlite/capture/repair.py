# SPDX-License-Identifier: Apache-2.0
"""
Recorded values of another class than their column is exported as, and their repair.

Readers of a capture's events never skip such a value: the whole range is refused. So nobody has seen the
event, and replacing the value changes nothing that was exported (ADR 0007).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from airflow_changefeed.core.capture import CaptureRepair, RepairWay, UnexportableValue
from airflow_changefeed.core.feed import Column, Shard
from airflow_changefeed.core.times import from_milliseconds
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.captured import DELETED, NEW, OLD
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, any_of, quote
from airflow_changefeed.sources.sqlite.feed.types import Storage, storage_of, unexportable_condition

#: A function of SQL that this module registers: whether bytes are UTF-8.
_IS_UTF8 = "changefeed_is_utf8"
_TYPES = {Storage.INTEGER: "integer", Storage.REAL: "real", Storage.TEXT: "text", Storage.BLOB: "blob"}
#: From which classes a value may be cast; back again it must be the same.
_CASTS = {
    Storage.INTEGER: ("real", "text"),
    Storage.REAL: ("integer", "text"),
    Storage.TEXT: ("integer", "real", "blob"),
    Storage.BLOB: ("text",),
}
_COLUMNS = (
    "number, capture, event, table_name, image, column_name, before_literal, after_literal, repaired_at_ms, "
    "repaired_by, note"
)


@dataclass(frozen=True)
class Replacement:
    """
    What takes the place of recorded values.

    :param value: the text that a person gave, for ``RepairWay.VALUE``.
    """

    way: RepairWay
    value: str | None = None

    def __post_init__(self) -> None:
        if (self.way is RepairWay.VALUE) != (self.value is not None):
            raise InvalidArgumentError("a value is required with RepairWay.VALUE, and allowed only there")


def find_unexportable(
    connection: sqlite3.Connection, tables: FeedTables, event: int | None = None, column: str | None = None
) -> list[UnexportableValue]:
    """
    Return the recorded values that no export can represent, in the order of their events.

    Reads the whole table of events, unless an event is named.
    """
    capture = _capture(connection, tables)
    rows = connection.execute(
        f"select changefeed_event from {tables.table} as e "
        f"where (?1 is null or changefeed_event = ?1) and ({any_of(list(_conditions(capture).values()))})",
        (event,),
    )
    found = _described(connection, tables, capture, [number for (number,) in rows])
    return [value for value in found if column is None or value.column == column]


def first_unexportable(
    connection: sqlite3.Connection, tables: FeedTables, shard: Shard, range_: UlidRange
) -> UnexportableValue | None:
    """Return the first value of a range that no export can represent."""
    capture = _capture(connection, tables)
    row = connection.execute(
        f"select e.changefeed_event from {tables.feed} as f "
        f"join {tables.table} as e on e.changefeed_event = f.changefeed_event "
        f"where f.{tables.shard_condition} and f.ulid > ? and f.ulid <= ? "
        f"and ({any_of(list(_conditions(capture).values()))}) order by f.ulid limit 1",
        (tables.to_sql(shard), range_.after.bytes, range_.upto.bytes),
    ).fetchone()
    return _described(connection, tables, capture, [row[0]])[0] if row else None


def _capture(connection: sqlite3.Connection, tables: FeedTables) -> StoredCapture:
    if tables.capture is None:
        raise TypeError(f"feed {tables.info.name!r} is not a capture")
    connection.create_function(_IS_UTF8, 1, _is_utf8, deterministic=True)
    return tables.capture


def _is_utf8(value: bytes | None) -> bool:
    try:
        # SQLite may ask for values that are not text.
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _conditions(capture: StoredCapture) -> dict[tuple[str, Column], str]:
    """Return for each column of both images when its value cannot be exported."""
    return {
        (image, field): unexportable_condition(field, f"e.{quote(f'{image}_{field.name}')}", _IS_UTF8)
        for image in (OLD, NEW)
        for field in capture.fields
    }


def _literal(expression: str) -> str:
    """Return SQL that gives a value as SQL writes it; Python reads no text that is not UTF-8."""
    raw = f"cast({expression} as blob)"
    return (
        f"case when typeof({expression}) = 'text' and not {_IS_UTF8}({raw}) "
        f"then 'cast(' || quote({raw}) || ' as text)' else quote({expression}) end"
    )


def _described(
    connection: sqlite3.Connection, tables: FeedTables, capture: StoredCapture, events: Sequence[int]
) -> list[UnexportableValue]:
    chosen = json.dumps(list(events))
    given = "changefeed_event in (select value from json_each(?))"
    ulids = dict(
        connection.execute(f"select changefeed_event, ulid from {tables.feed} where {given}", (chosen,))
    )
    names = [{field: name for name, field in table.fields.items()} for table in capture.tables]
    found = []
    for (image, field), condition in _conditions(capture).items():
        expression = f"e.{quote(f'{image}_{field.name}')}"
        rows = connection.execute(
            f"select changefeed_event, changefeed_table, typeof({expression}), {_literal(expression)} "
            f"from {tables.table} as e where {given} and {condition}",
            (chosen,),
        )
        found += [
            UnexportableValue(
                event,
                Ulid.of_bytes(ulids[event]) if event in ulids else None,
                capture.tables[number].name,
                image,
                names[number].get(field.name, field.name),
                field.type,
                storage_of(field).value,
                kind,
                literal,
            )
            for event, number, kind, literal in rows
        ]
    return sorted(found, key=lambda value: (value.event, value.image != OLD))


def repair(
    connection: sqlite3.Connection,
    tables: FeedTables,
    values: Sequence[UnexportableValue],
    replacement: Replacement,
    *,
    at_ms: int,
    by: str,
    note: str,
) -> list[CaptureRepair]:
    """
    Replace values, in the current transaction, and record the repairs.

    :raises InvalidArgumentError: some cannot be replaced so; names all of them; the transaction has to be
        rolled back.
    """
    capture, done, problems = _capture(connection, tables), [], []
    for value in values:
        try:
            after = _replace(connection, tables, capture, value, replacement)
        except InvalidArgumentError as error:
            problems.append(f"{value.place}: {error.message}")
            continue
        own = (capture.name, value.event, value.table, value.image, value.column, value.literal, after)
        (number,) = connection.execute(
            f'insert into "changefeed.repair" ({_COLUMNS.partition(", ")[2]}) '
            "values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning number",
            (*own, at_ms, by, note),
        ).fetchone()
        done.append(CaptureRepair(number, *own, from_milliseconds(at_ms), by, note))
    InvalidArgumentError.collect(f"repairing capture {capture.name!r}", problems)
    return done


def _replace(
    connection: sqlite3.Connection,
    tables: FeedTables,
    capture: StoredCapture,
    value: UnexportableValue,
    replacement: Replacement,
) -> str:
    """Replace one value; return the new one as SQL writes it."""
    table = next(one for one in capture.tables if one.name == value.table)
    name = table.fields.get(value.column, value.column)
    field = next(one for one in capture.fields if one.name == name)
    storage, place = storage_of(field), quote(f"{value.image}_{field.name}")
    new: Any = "?2"
    parameters: tuple[Any, ...] = (value.event,)
    if replacement.way is RepairWay.VALUE:
        parameters = (value.event, _given(storage, str(replacement.value)))
    elif replacement.way is RepairWay.NULL:
        new = "null"
    elif replacement.way is RepairWay.CAST:
        new = f"cast({place} as {_TYPES[storage]})"
        _check_cast(connection, tables, value, storage, place, new)
    else:
        new = _present_value(connection, tables, capture, value)
    connection.execute(
        f"update {tables.table} as e set {place} = {new} where changefeed_event = ?1", parameters
    )
    condition = unexportable_condition(field, f"e.{place}", _IS_UTF8)
    wrong, kind, after = connection.execute(
        f"select {condition}, typeof({place}), {_literal(place)} from {tables.table} as e "
        "where changefeed_event = ?",
        (value.event,),
    ).fetchone()
    if wrong:
        where = "the table's row holds" if replacement.way is RepairWay.PRESENT else "it would be"
        raise InvalidArgumentError(
            f"{where} {kind}, which cannot be exported as {storage.value} either; correct that first, or "
            "pass another value"
        )
    return str(after)


def _given(storage: Storage, text: str) -> Any:
    """Return a value that a person wrote, in the class of its column."""
    try:
        if storage is Storage.INTEGER:
            number = int(text)
            if not -(2**63) <= number < 2**63:
                raise ValueError
            return number
        if storage is Storage.REAL:
            real = float(text)
            if not isfinite(real):
                raise ValueError
            return real
        if storage is Storage.TEXT:
            text.encode()
        return bytes.fromhex(text) if storage is Storage.BLOB else text
    except ValueError:
        kinds = {
            Storage.INTEGER: "a 64-bit integer",
            Storage.REAL: "a finite number",
            Storage.TEXT: "a text: it has half a character (a lone surrogate)",
            Storage.BLOB: "bytes in hexadecimal digits",
        }
        raise InvalidArgumentError(f"{text!r} is not {kinds[storage]}") from None


def _check_cast(
    connection: sqlite3.Connection,
    tables: FeedTables,
    value: UnexportableValue,
    storage: Storage,
    place: str,
    cast: str,
) -> None:
    is_same = value.found in _CASTS[storage] and connection.execute(
        f"select cast({cast} as {value.found}) is {place} collate binary from {tables.table} "
        "where changefeed_event = ?",
        (value.event,),
    ).fetchone() == (1,)
    if not is_same:
        raise InvalidArgumentError(
            f"the {value.found} cannot be cast to {_TYPES[storage]} without loss; pass a value"
        )


def _present_value(
    connection: sqlite3.Connection, tables: FeedTables, capture: StoredCapture, value: UnexportableValue
) -> str:
    """Return SQL that gives what the captured table's row holds now; the event's row has the alias e."""
    table = next(one for one in capture.tables if one.name == value.table)
    (kind,) = connection.execute(
        f"select changefeed_op from {tables.table} where changefeed_event = ?", (value.event,)
    ).fetchone()
    image = OLD if kind == DELETED else NEW
    keys = " and ".join(
        f"t.{quote(key)} is e.{quote(f'{image}_{table.fields[key]}')}" for key in table.key_columns
    )
    there = (
        keys
        and connection.execute(
            f"select 1 from {tables.table} as e join {quote(table.name)} as t on {keys} "
            "where e.changefeed_event = ?",
            (value.event,),
        ).fetchone()
    )
    if not there:
        raise InvalidArgumentError("the table no longer has a row with that key; pass a value")
    return f"(select t.{quote(value.column)} from {quote(table.name)} as t where {keys})"


def repairs(connection: sqlite3.Connection, capture: str) -> list[CaptureRepair]:
    """Return what was repaired of a capture, by number."""
    rows = connection.execute(
        f'select {_COLUMNS} from "changefeed.repair" where capture = ? order by number', (capture,)
    )
    names = tuple(CaptureRepair.__dataclass_fields__)
    return [
        CaptureRepair(**dict(zip(names, (*row[:8], from_milliseconds(row[8]), *row[9:]), strict=True)))
        for row in rows
    ]
