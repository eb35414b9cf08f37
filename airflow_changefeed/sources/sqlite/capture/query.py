# SPDX-License-Identifier: Apache-2.0
"""The statement that reads a range of a capture's events in SQLite, and the conversion of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_changefeed.core.feed import Column
from airflow_changefeed.sources.arrow import byte_strings, whole_numbers
from airflow_changefeed.sources.captured import (
    ADDED,
    DDL,
    DELETED,
    READY,
    RESET,
    SNAPSHOT,
    UPDATED,
    WITHOUT_ROWS,
    EventColumns,
    captured_batch,
    captured_schema,
)
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture
from airflow_changefeed.sources.sqlite.feed.arrow import RangeQuery, fields_of, qualified

#: Kinds as the table has them, by number; an update without an old row has one of its own.
_KINDS = {
    ADDED: ADDED,
    UPDATED: UPDATED,
    "n": UPDATED,
    DELETED: DELETED,
    SNAPSHOT: SNAPSHOT,
    RESET: RESET,
    READY: READY,
    DDL: DDL,
}
_HAS_OLD = np.array([kind in (UPDATED, DELETED) for kind in _KINDS])
_HAS_NEW = np.array([kind not in (DELETED, *WITHOUT_ROWS) for kind in _KINDS])
#: What is read of an event before its images. Texts are never null, as ADBC takes the type of a column from
#: its first values.
_EVENT = (
    (Column("table", "integer"), "e.changefeed_table"),
    (Column("kind", "integer"), "instr('{kinds}', e.changefeed_op) - 1"),
    (Column("tid", "integer"), "f.changefeed_tid"),
    (Column("sequence", "integer"), "f.changefeed_sequence"),
    (Column("at", "integer"), "e.changefeed_at"),
    (Column("session variables", "text"), "coalesce(c.session, '')"),
    (Column("trace context", "text"), "coalesce(c.trace, '')"),
    (Column("ddl", "text"), "coalesce(e.changefeed_ddl, '')"),
)


@dataclass(frozen=True, kw_only=True)
class CaptureQuery(RangeQuery):
    """Reads events; a row holds what is known of the event, then its old, then its new row."""

    @property
    def capture(self) -> StoredCapture:
        """The capture."""
        return self.tables.captured

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """What is read, in the order of the statement."""
        images = [
            Column(f"{image}.{one.name}", one.type) for image in ("old", "new") for one in self.capture.fields
        ]
        return (*(column for column, _ in _EVENT), *images)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the stream of events."""
        return captured_schema(self.capture.shape, fields_of(self.capture.fields))

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The statement's parameters."""
        return (self.capture.name, *super().parameters)

    @property
    def sql(self) -> str:
        """The statement; rows in ascending ULID. An event that is gone is missing, whatever is asked for."""
        tables = self.tables
        kinds = "".join(_KINDS)
        values = [value.replace("{kinds}", kinds) for _, value in _EVENT]
        values += [
            self.value("e", one.name, image) for image in ("old_", "new_") for one in self.capture.fields
        ]
        cases = ["when e.changefeed_event is null then -1", *self.misfits(values, skip=len(_EVENT))]
        return (
            f"select f.ulid as u, {self.selected(cases, values)} from {tables.feed} f "
            f"left join {tables.table} e on e.changefeed_event = f.changefeed_event "
            'left join "changefeed.context" c on c.capture = ? and c.tid = f.changefeed_tid '
            f"where {qualified(tables.shard_condition, 'f')} and f.ulid > ? and f.ulid <= ? order by f.ulid"
        )

    def event_batch(self, ulids: np.ndarray, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        table, kind, tid, sequence, at, session, trace, ddl, *images = columns
        numbers = whole_numbers(kind)
        width = len(self.capture.fields)
        events = EventColumns(
            ulids=ulids,
            tables=table,
            kinds=byte_strings(list(_KINDS.values()), pa.string()).take(kind),
            tids=tid,
            sequences=sequence if self.capture.spec.with_sequence else None,
            captured_ms=at,
            session=_or_null(session),
            trace=_or_null(trace),
            ddl=_or_null(ddl),
            old=images[:width],
            has_old=_HAS_OLD[numbers],
            new=images[width:],
            has_new=_HAS_NEW[numbers],
        )
        return captured_batch(self.schema, events, [one.name for one in self.capture.tables])


def _or_null(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, byte_strings([""], pa.string())[0]), None, texts)
