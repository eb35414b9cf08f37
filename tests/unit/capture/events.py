# SPDX-License-Identifier: Apache-2.0
"""Events of captures as sources give them, made from Python's values by the sources' own functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_changefeed.core.capture import CapturedTable, CaptureShape, KeyChange, Operation
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.arrow import EventColumns, captured_batch, captured_schema

#: When the first event comes, 2026-11-22 01:02:03.004 UTC; each later one a millisecond after it.
START_MS = 1_795_309_323_004


@dataclass(frozen=True)
class Event:
    """
    One event.

    :param kind: as stored: a key of ``TYPES``.
    :param old: values by field; None for no row.
    """

    kind: str = "i"
    old: Mapping[str, Any] | None = None
    new: Mapping[str, Any] | None = None
    table: int = 0
    tid: int | None = 7
    session: str | None = None
    trace: str | None = None
    ddl: str | None = None


def captured_table(
    columns: Mapping[str, str] | Sequence[str], key: Sequence[str] = ("id",), **chosen: Mapping[str, str]
) -> CapturedTable:
    """
    Return a table all of whose operations are captured.

    :param columns: names, or names and their fields.
    :param chosen: other columns of an operation, by its name.
    """
    every = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    by_operation = {each: dict(chosen.get(each.value, every)) for each in Operation}
    return CapturedTable(tuple(key), by_operation, is_whole=True)


def capture_shape(
    tables: Mapping[str, CapturedTable], *, name: str = "dbo.orders_changes", with_sequence: bool = False
) -> CaptureShape:
    """Return a capture of tables."""
    return CaptureShape(name, KeyChange.NEW_ONLY, with_sequence, dict(tables))


def typed_batch(
    shape: CaptureShape,
    row: Sequence[pa.Field],
    events: Sequence[Event],
    *,
    ulids: Sequence[Ulid] | None = None,
    first: int = 0,
) -> pa.RecordBatch:
    """
    Return events in the typed form.

    :param row: the fields of old and new.
    :param ulids: of the events; None takes one for each millisecond from ``START_MS``.
    :param first: number of the first event.
    """
    schema = captured_schema(shape, row)
    numbers = range(first, first + len(events))
    given = ulids or [Ulid.of_int(((START_MS + number) << 80) + number + 1) for number in numbers]
    raw = np.frombuffer(b"".join(int(ulid).to_bytes(16, "big") for ulid in given), dtype=np.uint8)

    def image(side: str) -> tuple[list[pa.Array], np.ndarray]:
        rows = [getattr(event, side) for event in events]
        columns = [pa.array([(each or {}).get(field.name) for each in rows], field.type) for field in row]
        return columns, np.array([each is not None for each in rows], dtype=bool)

    (old, has_old), (new, has_new) = image("old"), image("new")
    columns = EventColumns(
        ulids=raw.reshape(-1, 16),
        tables=pa.array([event.table for event in events], pa.int64()),
        kinds=pa.array([event.kind for event in events], pa.string()),
        tids=pa.array([event.tid for event in events], pa.int64()),
        sequences=pa.array([number + 1 for number in numbers], pa.int64()) if shape.with_sequence else None,
        captured_ms=pa.array([START_MS + number for number in numbers], pa.int64()),
        session=pa.array([event.session for event in events], pa.string()),
        trace=pa.array([event.trace for event in events], pa.string()),
        ddl=pa.array([event.ddl for event in events], pa.string()),
        old=old,
        has_old=has_old,
        new=new,
        has_new=has_new,
    )
    return captured_batch(schema, columns, tuple(shape.tables))
