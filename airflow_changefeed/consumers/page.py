# SPDX-License-Identifier: Apache-2.0
"""
Events from Arrow batches, without converting values that are never read.

A leaf module: it imports Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from itertools import compress
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.arrow import shape_of, ulid_texts, ulid_times, ulid_values
from airflow_changefeed.sources.base import TIME_COLUMN, ULID_COLUMN

_OURS = (ULID_COLUMN, TIME_COLUMN)
_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: Microseconds of the units that Python's times can hold.
_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}


@dataclass(frozen=True)
class EventColumns:
    """
    What is known of a feed's events before reading any.

    :param is_captured: whether they are a capture's events, with old and new rows.
    :param tables: of the capture; for a plain feed, its name.
    :param with_ddl: whether the consumer takes changes of columns.
    """

    is_captured: bool
    tables: tuple[str, ...]
    fields: tuple[str, ...]
    with_sequence: bool = False
    with_epoch: bool = False
    with_tid: bool = False
    with_ddl: bool = False

    @classmethod
    def of(
        cls,
        feed: str,
        schema: pa.Schema,
        *,
        with_sequence: bool = False,
        with_epoch: bool = False,
        with_tid: bool = False,
        with_ddl: bool = False,
        by_transaction: bool = False,
    ) -> EventColumns:
        """
        Check the options against the feed's events.

        :param by_transaction: whether batches go by the originating transaction.
        :raises InvalidArgumentError: names every option that these events do not support, and why.
        """
        shape = shape_of(schema)
        asked = {
            "with_sequence": with_sequence,
            "with_epoch": with_epoch,
            "with_tid": with_tid,
            "ddl": with_ddl,
            "a batch by transaction": by_transaction,
        }
        if shape is None:
            problems = [
                f"{name} needs the feed of a capture; a plain outbox does not record the transaction, "
                "sequence or statement time of an event, or changes of columns. Omit the option, or "
                "capture the table"
                for name, is_asked in asked.items()
                if is_asked
            ]
            fields = tuple(name for name in schema.names if name not in _OURS)
            tables: tuple[str, ...] = (feed,)
        else:
            problems = []
            if with_sequence and not shape.with_sequence:
                problems.append(
                    "with_sequence needs a capture that was enabled with with_sequence; this capture "
                    "has no sequence"
                )
            row = schema.field("new").type
            fields = tuple(row.field(number).name for number in range(row.num_fields))
            tables = tuple(shape.tables)
        InvalidArgumentError.collect(f"consumer of feed {feed!r}", problems)
        return cls(shape is not None, tables, fields, with_sequence, with_epoch, with_tid, with_ddl)


@dataclass(eq=False)
class EventPage:
    """
    Some events of a shard, in order, as one Arrow batch.

    :param dead_letter: number of the dead letter that its one event is; None for events on their way.
    :ivar ids: their ULIDs, 16 bytes each.
    """

    feed: str
    shard: Shard
    columns: EventColumns
    batch: pa.RecordBatch
    dead_letter: int | None = None

    def __post_init__(self) -> None:
        self.ids: bytes = ulid_values(self.batch.column(ULID_COLUMN))
        self._values: dict[str, list[Any]] = {}
        self._rows: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @property
    def last(self) -> Ulid:
        """The ULID of the last one."""
        return Ulid(self.ids[-16:])

    def wanted(self) -> Sequence[int]:
        """Return the indexes of the events that the consumer takes; of a dead letter, always its event."""
        everything = range(len(self))
        if not self.columns.is_captured or self.columns.with_ddl or self.dead_letter is not None:
            return everything
        # Null for all events but those, which are rare.
        ddl = self.batch.column("ddl")
        if ddl.null_count == len(ddl):
            return everything
        return list(compress(everything, ddl.is_null().to_pylist()))

    def values(self, name: str) -> list[Any]:
        """Return the values of a column."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = python_values(self.batch.column(name))
        return found

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of a plain feed."""
        if self._rows is None:
            names = self.columns.fields
            columns = [python_values(self.batch.column(name)) for name in names]
            # Each row has a value for each name.
            self._rows = [dict(zip(names, row, strict=False)) for row in zip(*columns, strict=True)]
        return self._rows


def unknown_page(
    feed: str, shard: Shard, columns: EventColumns, schema: pa.Schema, ulid: Ulid, dead_letter: int | None
) -> EventPage:
    """Return an event of which nothing is known but its place."""
    raw = np.frombuffer(ulid.bytes, dtype=np.uint8).reshape(1, 16)
    known = {ULID_COLUMN: ulid_texts(raw), TIME_COLUMN: ulid_times(raw)}
    arrays = [known.get(field.name, pa.nulls(1, field.type)) for field in schema]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    return EventPage(feed, shard, columns, batch, dead_letter)


def python_values(column: pa.Array) -> list[Any]:
    """
    Return a column's values as exact Python objects.

    Arrow's own conversion looks up the time zone of each value by name, which takes longer than everything
    else.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return python_values(column.dictionary_decode())
    if pa.types.is_struct(kind):
        return _structs(column)
    if pa.types.is_timestamp(kind) and kind.unit in _UNITS and kind.tz in (None, "UTC"):
        return _times(column)
    return list(column.to_pylist())


def _structs(column: pa.StructArray) -> list[dict[str, Any] | None]:
    kind = column.type
    names = [kind.field(number).name for number in range(kind.num_fields)]
    fields = [python_values(column.field(number)) for number in range(kind.num_fields)]
    rows = [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)] if fields else []
    if not column.null_count and names:
        return list(rows)
    is_there = column.is_valid().to_pylist()
    if not names:
        return [{} if one else None for one in is_there]
    found: list[dict[str, Any] | None] = [None] * len(column)
    for place in compress(range(len(column)), is_there):
        found[place] = rows[place]
    return found


def _times(column: pa.Array) -> list[datetime | None]:
    kind = column.type
    scale = _UNITS[kind.unit]
    epoch = _EPOCH if kind.tz is None else _EPOCH_UTC
    return [
        None if number is None else epoch + timedelta(microseconds=number * scale)
        for number in column.view(pa.int64()).to_pylist()
    ]
