# SPDX-License-Identifier: Apache-2.0
"""
Events of a capture in Arrow: flat columns from a source become ``old`` and ``new``.

Both sources read one row of the capture's table per image, joined to the feed twice; this combines them
without a Python loop over the rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_changefeed.core.capture import METADATA_KEY, CaptureShape
from airflow_changefeed.core.codec import decode_text, encode
from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD, byte_strings, ulid_texts, ulid_times

#: Event kinds as stored in a capture's table, and as readers see them.
ADDED, UPDATED, DELETED, SNAPSHOT, RESET, READY, DDL = "i", "u", "d", "r", "t", "e", "c"
TYPES = {
    ADDED: "add",
    UPDATED: "upd",
    DELETED: "del",
    SNAPSHOT: "add",
    RESET: "reset",
    READY: "ready",
    DDL: "ddl",
}
#: Kinds of events that are not about a row.
WITHOUT_ROWS = (RESET, READY, DDL)

_NAME = pa.field("name", pa.string(), nullable=False)
_TYPE = pa.field("type", pa.string(), nullable=False)
_IS_SNAPSHOT = pa.field("is_snapshot", pa.bool_(), nullable=False)
_TID = pa.field("tid", pa.int64())
_SEQUENCE = pa.field("sequence", pa.int64(), nullable=False)
_EPOCH = pa.field("epoch", pa.int64(), nullable=False)
_CAPTURED_AT = pa.field("captured_at", pa.timestamp("ms", tz="UTC"), nullable=False)
_SESSION = pa.field("session_variables", pa.string())
_TRACE = pa.field("trace_context", pa.string())
_DDL = pa.field("ddl", pa.string())
OLD, NEW = "old", "new"


@dataclass(frozen=True)
class EventColumns:
    """
    A batch of events as read by a source.

    :param ulids: uint8, shape (rows, 16).
    :param tables: index of each event's table in the names passed to :func:`captured_batch`; int64.
    :param kinds: keys of ``TYPES``; string.
    :param tids: int64, with nulls.
    :param sequences: int64; ignored if the capture is without sequence.
    :param captured_ms: milliseconds since 1970; int64.
    :param session: JSON texts, with nulls.
    :param trace: texts, with nulls.
    :param ddl: JSON texts, null for all other kinds.
    :param old: one column per field of the image.
    :param has_old: whether the event has an old row; bool, shape (rows,).
    :param new: as ``old``.
    """

    ulids: np.ndarray
    tables: pa.Array
    kinds: pa.Array
    tids: pa.Array
    sequences: pa.Array | None
    captured_ms: pa.Array
    session: pa.Array
    trace: pa.Array
    ddl: pa.Array
    old: Sequence[pa.Array]
    has_old: np.ndarray
    new: Sequence[pa.Array]
    has_new: np.ndarray


def captured_schema(shape: CaptureShape, image: Sequence[pa.Field]) -> pa.Schema:
    """
    Return the columns of a capture's events.

    :param image: fields of a row; all of them may be null.
    """
    row = pa.struct([field.with_nullable(True) for field in image])
    sequence = [_SEQUENCE] if shape.with_sequence else []
    return pa.schema(
        [
            ULID_FIELD,
            TIME_FIELD,
            _NAME,
            _TYPE,
            _IS_SNAPSHOT,
            _TID,
            *sequence,
            _EPOCH,
            _CAPTURED_AT,
            _SESSION,
            _TRACE,
            _DDL,
            pa.field(OLD, row),
            pa.field(NEW, row),
        ],
        # Not sorted: each operation's columns are in the table's order, which a fold keeps.
        metadata={METADATA_KEY: json.dumps(encode(shape)).encode()},
    )


def captured_batch(schema: pa.Schema, events: EventColumns, names: Sequence[str]) -> pa.RecordBatch:
    """
    Put a batch together.

    :param schema: of :func:`captured_schema`.
    :param names: of the capture's tables, by number from 0.
    """
    given = {
        _NAME.name: byte_strings(names, pa.string()).take(events.tables),
        _TYPE.name: _types(events.kinds),
        _IS_SNAPSHOT.name: pc.equal(events.kinds, _text(SNAPSHOT)),
        _TID.name: events.tids,
        _EPOCH.name: _seconds(events.captured_ms),
        _CAPTURED_AT.name: events.captured_ms.cast(_CAPTURED_AT.type),
        _SESSION.name: events.session,
        _TRACE.name: events.trace,
        _DDL.name: events.ddl,
        OLD: _image(schema, OLD, events.old, events.has_old),
        NEW: _image(schema, NEW, events.new, events.has_new),
        ULID_FIELD.name: ulid_texts(events.ulids),
        TIME_FIELD.name: ulid_times(events.ulids),
    }
    if events.sequences is not None:
        given[_SEQUENCE.name] = events.sequences
    return pa.RecordBatch.from_arrays([given[name] for name in schema.names], schema=schema)


def _types(kinds: pa.Array) -> pa.Array:
    known = byte_strings(list(TYPES), pa.string())
    return byte_strings(list(TYPES.values()), pa.string()).take(pc.index_in(kinds, value_set=known))


def _text(value: str) -> pa.Scalar:
    return byte_strings([value], pa.string())[0]


def _seconds(milliseconds: pa.Array) -> pa.Array:
    """Return whole seconds; events are captured after 1970."""
    values = np.frombuffer(milliseconds.buffers()[1], dtype=np.int64)[milliseconds.offset :]
    return pa.Array.from_buffers(
        pa.int64(), len(milliseconds), [None, pa.py_buffer(values[: len(milliseconds)] // 1000)]
    )


def _image(schema: pa.Schema, name: str, columns: Sequence[pa.Array], present: np.ndarray) -> pa.Array:
    """Return a column of rows, null where there is none."""
    bits = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.StructArray.from_buffers(
        schema.field(name).type, len(present), [bits], children=[_aligned(column) for column in columns]
    )


def _aligned(column: pa.Array) -> pa.Array:
    """Return a column without an offset into its buffers, as a struct requires."""
    return column if column.offset == 0 else pa.concat_arrays([column])


def shape_of(schema: pa.Schema) -> CaptureShape | None:
    """Return a schema's capture description; None for a plain feed."""
    found = (schema.metadata or {}).get(METADATA_KEY)
    if found is None:
        return None
    return decode_text(CaptureShape, found, where="the schema's capture")
