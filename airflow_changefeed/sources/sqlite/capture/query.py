# SPDX-License-Identifier: Apache-2.0
"""
The statement that reads a range of a capture's events in SQLite, and the conversion of its columns.

Readers never skip a recorded value of another class than its column's: the whole range is refused. So nobody
has seen the event, and correcting the value changes nothing that was exported (ADR 0007).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_changefeed.core.feed import Column, Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.sources.arrow import (
    ADDED,
    DDL,
    DELETED,
    NEW,
    OLD,
    READY,
    RESET,
    SNAPSHOT,
    UPDATED,
    WITHOUT_ROWS,
    EventColumns,
    byte_strings,
    captured_batch,
    captured_schema,
    whole_numbers,
)
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture
from airflow_changefeed.sources.sqlite.feed.arrow import RangeQuery, fields_of, qualified
from airflow_changefeed.sources.sqlite.feed.names import (
    FeedTables,
    Storage,
    any_of,
    quote,
    storage_of,
    unexportable_condition,
)

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


#: A function of SQL that this module registers: whether bytes are UTF-8.
_IS_UTF8 = "changefeed_is_utf8"
#: What stands in a statement for a value that a person has to write.
_PLACEHOLDERS = {Storage.TEXT: "'...'", Storage.BLOB: "x'...'"}


def unexportable_error(tables: FeedTables, shard: Shard, range_: UlidRange) -> ColumnTypeError | None:
    """
    Return the error that names the first value of a range that no export can represent, with the statement
    that corrects it: to correct the captured table does not correct what was recorded.

    :return: None if there is no such value, or the feed is not a capture's.
    """
    capture = tables.capture
    if capture is None:
        return None
    tables.connection.create_function(_IS_UTF8, 1, _is_utf8, deterministic=True)
    conditions = {
        (image, field): unexportable_condition(field, f"e.{quote(f'{image}_{field.name}')}", _IS_UTF8)
        for image in (OLD, NEW)
        for field in capture.fields
    }
    row = tables.execute(
        f"select e.changefeed_event, e.changefeed_table, f.ulid from {tables.feed} as f "
        f"join {tables.table} as e on e.changefeed_event = f.changefeed_event "
        f"where f.{tables.shard_condition} and f.ulid > ? and f.ulid <= ? "
        f"and ({any_of(list(conditions.values()))}) order by f.ulid limit 1",
        (tables.to_sql(shard), range_.after.bytes, range_.upto.bytes),
    ).fetchone()
    if row is None:
        return None
    event, number, ulid = row
    image, field, kind = next(
        (image, field, kind)
        for (image, field), condition in conditions.items()
        for (kind,) in tables.execute(
            f"select typeof({quote(f'{image}_{field.name}')}) from {tables.table} as e "
            f"where changefeed_event = ? and {condition}",
            (event,),
        )
    )
    table, storage = capture.tables[number], storage_of(field)
    column = {place: name for name, place in table.fields.items()}.get(field.name, field.name)
    statement = (
        f"update {tables.table} set {quote(f'{image}_{field.name}')} = {_PLACEHOLDERS.get(storage, '...')} "
        f"where changefeed_event = {event}"
    )
    # The value itself is not repeated: it may be anything.
    return ColumnTypeError(
        f"feed {tables.info.name!r} shard {shard_text(shard)}: column {column!r} of table "
        f"{table.name!r}, declared {field.type or 'without type'!r}, cannot be exported unchanged as "
        f"{storage.value}: the {image} row of event {event} holds another class ({kind}). Correct the "
        f"rows of {table.name!r} that have such values. Then correct the recorded row: {statement}",
        feed=tables.info.name,
        shard=shard,
        column=f"{image}.{column}",
        event=event,
        ulid=str(Ulid.of_bytes(ulid)),
    )


def _is_utf8(value: bytes | None) -> bool:
    try:
        # SQLite may ask for values that are not text.
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
