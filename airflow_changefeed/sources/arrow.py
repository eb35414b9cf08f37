# SPDX-License-Identifier: Apache-2.0
"""
The first columns of every stream in Arrow, and the events of a capture with their ``old`` and ``new``.

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
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.exceptions import IncompleteReadError, SchemaChangedError
from airflow_changefeed.sources.base import TIME_COLUMN, ULID_COLUMN

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
#: Two characters per ten bits.
_PAIRS = np.frombuffer("".join(a + b for a in _CROCKFORD for b in _CROCKFORD).encode(), dtype=np.uint16)
_TEXT_LENGTH = 26
#: The five bits of each character.
_DIGITS = np.zeros(256, dtype=np.uint64)
_DIGITS[np.frombuffer(_CROCKFORD.encode(), dtype=np.uint8)] = np.arange(32, dtype=np.uint64)

ULID_FIELD = pa.field(ULID_COLUMN, pa.string(), nullable=False)
TIME_FIELD = pa.field(TIME_COLUMN, pa.timestamp("ms", tz="UTC"), nullable=False)


def ulid_bytes(column: pa.Array) -> np.ndarray:
    """
    Return ULIDs as a matrix of bytes.

    :param column: binary of 16 bytes each, without nulls.
    :return: uint8, shape (rows, 16).
    """
    return np.frombuffer(column.cast(pa.binary(16)).buffers()[1], dtype=np.uint8).reshape(-1, 16)[
        column.offset if pa.types.is_fixed_size_binary(column.type) else 0 :
    ][: len(column)]


def ulid_texts(raw: np.ndarray) -> pa.Array:
    """
    Encode ULIDs as 26 Crockford characters each.

    Does for a column what python-ulid does for one value; a property test keeps the two equal.

    :param raw: uint8, shape (rows, 16).
    """
    rows = len(raw)
    words = raw.astype(">u1", copy=False).view(">u8").reshape(rows, 2).astype(np.uint64)
    high, low = words[:, 0], words[:, 1]
    text = np.empty((rows, _TEXT_LENGTH // 2), dtype=np.uint16)
    for place in range(_TEXT_LENGTH // 2):
        shift = 10 * (_TEXT_LENGTH // 2 - 1 - place)
        if shift >= 64:
            digits = high >> np.uint64(shift - 64)
        elif shift > 54:
            digits = (low >> np.uint64(shift)) | (high << np.uint64(64 - shift))
        else:
            digits = low >> np.uint64(shift)
        text[:, place] = _PAIRS[digits & np.uint64(1023)]
    offsets = np.arange(0, (rows + 1) * _TEXT_LENGTH, _TEXT_LENGTH, dtype=np.int32)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text))


def ulid_values(column: pa.Array) -> bytes:
    """
    Decode the output of :func:`ulid_texts`.

    :param column: texts of 26 characters each, without nulls.
    :return: 16 bytes per row, concatenated.
    """
    rows = len(column)
    if not rows:
        return b""
    raw = np.frombuffer(column.buffers()[2], dtype=np.uint8)
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)
    begin = int(offsets[column.offset])
    digits = _DIGITS[raw[begin : begin + rows * _TEXT_LENGTH].reshape(rows, _TEXT_LENGTH)]
    words = np.zeros((rows, 2), dtype=np.uint64)
    for place in range(_TEXT_LENGTH // 2):
        words[:, 0] = (words[:, 0] << np.uint64(5)) | digits[:, place]
        words[:, 1] = (words[:, 1] << np.uint64(5)) | digits[:, place + _TEXT_LENGTH // 2]
    # 65 bits each: the first half's highest bit is never set, the second half's belongs to the first.
    carry = digits[:, _TEXT_LENGTH // 2] >> np.uint64(4)
    words[:, 0] = (words[:, 0] << np.uint64(1)) | carry
    return words.astype(">u8").tobytes()


def ulid_times(raw: np.ndarray) -> pa.Array:
    """
    Return the times of ULIDs, UTC in milliseconds.

    :param raw: uint8, shape (rows, 16).
    """
    wide = np.zeros((len(raw), 8), dtype=np.uint8)
    wide[:, 2:] = raw[:, :6]
    milliseconds = wide.view(">u8").reshape(-1).astype(np.int64)
    return pa.Array.from_buffers(TIME_FIELD.type, len(raw), [None, pa.py_buffer(milliseconds)])


def whole_numbers(column: pa.Array) -> np.ndarray:
    """
    Return the values of an int64 column without nulls, without copying.

    Here and below through Arrow's buffers: pyarrow's own conversions to and from Python and numpy import
    pandas, which costs a Spark worker a second.
    """
    return np.frombuffer(column.buffers()[1], dtype=np.int64)[column.offset :][: len(column)]


def one_value(value: float | bytes | str) -> pa.Array:
    """Return a column of one row: int64, float64, binary or string."""
    if isinstance(value, (int, float)):
        kind, type_ = (np.int64, pa.int64()) if isinstance(value, int) else (np.float64, pa.float64())
        return pa.Array.from_buffers(type_, 1, [None, pa.py_buffer(np.array([value], dtype=kind))])
    return byte_strings([value], pa.string() if isinstance(value, str) else pa.binary())


def byte_strings(values: Sequence[bytes | str], type_: pa.DataType) -> pa.Array:
    """
    Return a column of texts or byte strings, at most 2 GiB in total.

    :param type_: string or binary.
    """
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int32)
    np.cumsum([len(value) for value in encoded], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(type_, len(encoded), buffers)


def check_schema(found: pa.Schema, schema: pa.Schema, feed: str) -> None:
    """
    Check that a source's batches have the columns that the reader started with.

    :param schema: from ``FeedReader.schema``, read before.
    :raises SchemaChangedError: the table was changed in between.
    """
    if found == schema:
        return
    before = {column.name: str(column.type) for column in schema}
    now = {column.name: str(column.type) for column in found}
    changed = [
        f"{name!r} was {before.get(name, 'missing')}, is {now.get(name, 'missing')}"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    raise SchemaChangedError(
        f"feed {feed!r}: the columns of its table changed during the read: "
        f"{'; '.join(changed) or 'their order'}; retry",
        feed=feed,
    )


def check_order(batch: pa.RecordBatch, last: str, range_: UlidRange, feed: str, shard: Shard) -> str:
    """
    Check that a batch goes on in ascending ULIDs within its range.

    :param last: last ULID of the batch before, exclusive; the beginning of the range for the first one.
    :return: the batch's last ULID.
    :raises IncompleteReadError: the source gave events out of order or outside the range.
    """
    if batch.num_rows == 0:
        return last
    # ULIDs as text sort as they do as numbers.
    ulids = batch.column(ULID_COLUMN)
    first, final = ulids[0].as_py(), ulids[-1].as_py()
    ascends = batch.num_rows == 1 or pc.all(pc.less(ulids.slice(0, len(ulids) - 1), ulids.slice(1))).as_py()
    if not (ascends and first > last and final <= str(range_.upto)):
        raise IncompleteReadError(
            f"feed {feed!r}, shard {shard}: the source gave events out of order or outside ({range_.after}, "
            f"{range_.upto}], between {first} and {final}; retry",
            feed=feed,
            shard=shard,
        )
    return str(final)


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
    return decode_text(CaptureShape, found, named="the schema's capture")
