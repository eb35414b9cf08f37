# SPDX-License-Identifier: Apache-2.0
"""Rows of captured tables as JSON objects, with the columns that each event's operation captures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_changefeed.capture.values import as_json, joined, json_texts
from airflow_changefeed.core.capture import (
    BASE_TYPE,
    OFFSET,
    TICKS,
    CaptureShape,
    Operation,
)
from airflow_changefeed.exceptions import SchemaChangedError
from airflow_changefeed.sources.arrow import byte_strings

#: Event types, by the number used in this module.
EVENT_TYPES = ("add", "upd", "del", "reset", "ready", "ddl")
_OPERATIONS = (Operation.INSERT, Operation.UPDATE, Operation.DELETE)

#: A table's column and its field in ``old`` and ``new``.
Columns = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Member:
    """
    A key of a JSON object, and the numbers of the fields that form its value.

    :param ticks: of the seconds' seventh digits; None without any.
    :param offsets: of the minutes ahead of UTC; None without any.
    """

    name: str
    field: int
    ticks: int | None = None
    offsets: int | None = None


@dataclass(frozen=True)
class Captured:
    """The columns of a capture's rows, by table and event type."""

    shape: CaptureShape

    @property
    def tables(self) -> tuple[str, ...]:
        """The capture's tables, by the number used in this module."""
        return tuple(self.shape.tables)

    def columns(self, table: int, event: int) -> Columns:
        """Return the columns of a table's event; irrelevant for one without rows."""
        captured = self.shape.tables[self.tables[table]].columns
        operation = _OPERATIONS[event] if event < len(_OPERATIONS) else Operation.INSERT
        if operation in captured:
            return tuple(captured[operation].items())
        # A key change may be recorded as this operation, which then has all columns.
        return tuple(
            {name: field for columns in captured.values() for name, field in columns.items()}.items()
        )

    def keys(self, table: int, event: int) -> Columns:
        """Return an event's key columns; empty if one of them is not captured for it."""
        own = self.shape.tables[self.tables[table]]
        columns = dict(self.columns(table, event))
        if not all(name in columns for name in own.key_columns):
            return ()
        return tuple((name, columns[name]) for name in own.key_columns)


def members(row: pa.StructType, columns: Columns, own: frozenset[str]) -> tuple[Member, ...]:
    """
    Return the keys of the JSON objects of rows.

    :param own: fields that are columns themselves, not a column's second field.
    :raises SchemaChangedError: a column is missing from the rows.
    """
    found: list[Member] = []
    places = _places(row)
    # In the table's order, not sorted by name.
    for name, field in sorted(columns, key=lambda column: places.get(column[1], -1)):
        if field not in places:
            raise SchemaChangedError(
                f"the capture has a column {name!r}, but the rows that were read have no field "
                f"{field!r}: the capture was refreshed during the read; retry",
                column=name,
            )

        def second(suffix: str, *kinds: Any, field: str = field) -> int | None:
            place = places.get(field + suffix)
            is_second = place is not None and field + suffix not in own
            return place if is_second and row.field(place).type in kinds else None

        kind = row.field(places[field]).type
        is_instant = pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz is not None
        is_time = is_instant or kind in (pa.timestamp("us"), pa.time64("us"))
        ticks = second(TICKS, pa.uint8(), pa.int16()) if is_time else None
        offsets = second(OFFSET, pa.int16()) if is_instant else None
        found.append(Member(name, places[field], ticks, offsets))
        base_type = second(BASE_TYPE, pa.string()) if pa.types.is_string(kind) else None
        if base_type is not None:
            found.append(Member(name + BASE_TYPE, base_type))
    return tuple(found)


@lru_cache(maxsize=64)
def _places(row: pa.StructType) -> Mapping[str, int]:
    return {row.field(number).name: number for number in range(row.num_fields)}


def check_rows(shape: CaptureShape, row: pa.StructType) -> None:
    """Raise ColumnTypeError unless all captured columns have a JSON form."""
    own, captured = shape.own_fields, Captured(shape)
    for table in range(len(captured.tables)):
        for event in range(len(_OPERATIONS)):
            for member in members(row, captured.columns(table, event), own):
                # By the conversion itself, so that check and conversion cannot differ.
                json_texts(member.name, pa.nulls(0, row.field(member.field).type))


@dataclass(frozen=True)
class Events:
    """
    The tables and types of a batch's events.

    :param tables: number of each event's table; int64.
    :param kinds: number of each event's type in ``EVENT_TYPES``; int64.
    """

    captured: Captured
    tables: np.ndarray
    kinds: np.ndarray

    @classmethod
    def of(cls, shape: CaptureShape, batch: pa.RecordBatch) -> Events:
        """
        Read them from a batch.

        :raises SchemaChangedError: a table is not in the capture.
        """
        captured = Captured(shape)
        tables = _numbers(batch.column("name"), captured.tables)
        kinds = _numbers(batch.column("type"), EVENT_TYPES)
        for name, numbers in (("name", tables), ("type", kinds)):
            if len(numbers) and int(numbers.min()) < 0:
                unknown = batch.column(name)[int(numbers.argmin())].as_py()
                raise SchemaChangedError(
                    f"capture {shape.name!r} has no {name} {unknown!r}: it was changed during the read; retry"
                )
        return cls(captured, tables, kinds)

    def groups(self, present: np.ndarray, *, is_key: bool) -> Iterator[tuple[Columns, np.ndarray]]:
        """
        Yield groups of rows with the same columns; few groups, because operations mostly share them.

        :param present: requested rows; bool.
        """
        codes = self.tables * len(EVENT_TYPES) + self.kinds
        same: dict[Columns, list[int]] = {}
        for code in np.unique(codes[present]).tolist():
            table, event = divmod(code, len(EVENT_TYPES))
            columns = self.captured.keys(table, event) if is_key else self.captured.columns(table, event)
            same.setdefault(columns, []).append(code)
        for columns, own in same.items():
            if len(same) == 1:
                yield columns, np.flatnonzero(present)
            else:
                yield columns, np.flatnonzero(present & np.isin(codes, own))


def _numbers(column: pa.Array, names: Sequence[str]) -> np.ndarray:
    """Return the index of each name, -1 if unknown."""
    found = pc.fill_null(pc.index_in(column, value_set=byte_strings(names, pa.string())), _MINUS_ONE)
    return np.frombuffer(found.buffers()[1], dtype=np.int32)[found.offset :][: len(found)].astype(np.int64)


_MINUS_ONE = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(np.array([-1], dtype=np.int32))])[0]


def present_rows(image: pa.StructArray) -> np.ndarray:
    """Return which events have an image; bool."""
    if not image.null_count:
        return np.ones(len(image), dtype=bool)
    bits = np.frombuffer(image.buffers()[0], dtype=np.uint8)
    return np.unpackbits(bits, bitorder="little")[image.offset :][: len(image)].astype(bool)


def row_texts(
    events: Events, image: pa.StructArray, present: np.ndarray, *, is_key: bool = False
) -> pa.Array:
    """
    Write rows as JSON objects.

    :param present: requested rows, all of which have an image; bool.
    :param is_key: only the key's columns.
    :return: null for rows not requested, or without a key.
    """
    own = events.captured.shape.own_fields
    texts, places = [], []
    for columns, rows in events.groups(present, is_key=is_key):
        if columns or not is_key:
            texts.append(_objects(members(image.type, columns, own), image, rows))
            places.append(rows)
    if not texts:
        return pa.nulls(len(image), pa.string())
    if len(texts) == 1 and len(texts[0]) == len(image):
        return texts[0]
    return _scattered(texts, places, len(image))


def object_texts(rows: pa.StructArray, columns: frozenset[str], places: np.ndarray) -> pa.Array:
    """
    Write rows of a plain feed as JSON objects.

    :param columns: those of their table; any other is the second column of one of them.
    :param places: indexes of the requested rows; int64.
    """
    names = [rows.type.field(number).name for number in range(rows.type.num_fields)]
    own = tuple((name, name) for name in names if name in columns)
    return _objects(members(rows.type, own, columns), rows, places)


def _scattered(texts: Sequence[pa.Array], places: Sequence[np.ndarray], rows: int) -> pa.Array:
    """Put texts at their indexes, and nulls elsewhere."""
    place = np.concatenate(places)
    indices, is_there = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=bool)
    indices[place] = np.arange(len(place))
    is_there[place] = True
    bits = pa.py_buffer(np.packbits(is_there, bitorder="little"))
    return pa.concat_arrays(texts).take(
        pa.Array.from_buffers(pa.int64(), rows, [bits, pa.py_buffer(indices)])
    )


def _objects(keys: Sequence[Member], image: pa.StructArray, rows: np.ndarray) -> pa.Array:
    wanted = None
    if len(rows) < len(image):
        wanted = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows.astype(np.int64))])

    def column(number: int | None) -> pa.Array | None:
        if number is None:
            return None
        return image.field(number) if wanted is None else image.field(number).take(wanted)

    pieces: list[pa.Array | str] = []
    before = "{"
    for key in keys:
        found = json_texts(key.name, column(key.field), ticks=column(key.ticks), offsets=column(key.offsets))
        before += f"{as_json(key.name)}:"
        # Separators between values are constant; those of nullable values appear only with the value.
        if found.is_quoted and found.texts.null_count:
            pieces += [before, joined(['"', found.texts, '"'])]
            before = ","
        else:
            quote = '"' if found.is_quoted else ""
            pieces += [before + quote, found.texts]
            before = f"{quote},"
    if not pieces:
        return byte_strings(["{}"] * len(rows), pa.string())
    return joined([*pieces, before[:-1] + "}"], null="null")
