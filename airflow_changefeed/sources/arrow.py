# SPDX-License-Identifier: Apache-2.0
"""ULIDs in Arrow columns: the first columns of every stream, computed without a Python loop over the rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
