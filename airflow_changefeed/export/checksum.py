# SPDX-License-Identifier: Apache-2.0
"""
A checksum of a set of rows, independent of the order of rows and columns, and of batches and files.

Each row has a 128-bit hash; the checksum is their sum modulo 2**128. Its definition is permanent: the same on
every machine and version, and for rows read back from Parquet. It detects accidents, not forgery.

A cell's two 64-bit lanes come from splitmix64's finaliser (Sebastiano Vigna, https://prng.di.unimi.it/splitmix64.c)
over its bits and a seed of the column's name and type; a row's are finalised sums of its cells' lanes.

A struct has one cell for whether it is null, and one for each of its fields, whose seeds contain the names
and types on the path to it. Fields of a null struct do not count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_changefeed.exceptions import ColumnTypeError

U64 = np.uint64
_ODD_1 = U64(0xBF58476D1CE4E5B9)
_ODD_2 = U64(0x94D049BB133111EB)
_GOLDEN = U64(0x9E3779B97F4A7C15)
_LANE = U64(0xD6E8FEB86659FD93)
_NULL = U64(0xA0761D6478BD642F)
# Masks for the first n bytes of a little-endian word.
_KEEP = np.array([(1 << (8 * n)) - 1 for n in range(8)] + [(1 << 64) - 1], dtype=U64)
_SHORT_WORDS = 4
# Rows to hash at a time: a column's numbers must fit the processor's cache.
_CHUNK_ROWS = 16_384


def checksum(rows: pa.RecordBatch | pa.Table) -> int:
    """
    Return the checksum of rows, 0 to 2**128 - 1; no rows have 0, and checksums of parts add up modulo 2**128.

    :raises ColumnTypeError: a column of a nested type other than struct.
    """
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    return sum(_batch(batch) for batch in table.to_batches(_CHUNK_ROWS)) % (1 << 128)


def _batch(batch: pa.RecordBatch) -> int:
    count = batch.num_rows
    if count == 0:
        return 0
    low, high = np.zeros(count, dtype=U64), np.zeros(count, dtype=U64)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for lane in _lanes(name, column):
            low += lane
            high += _second(lane)
    _finalise(low)
    high ^= low
    _finalise(high)
    return _sum(low) + (_sum(high) << 64)


def _second(lane: Any) -> Any:
    """Turn the first lane of cells into their second one, in place."""
    lane ^= lane >> U64(29)
    lane *= _LANE
    lane ^= lane >> U64(32)
    return lane


def _lanes(name: str, column: pa.Array, way: str = "", absent: Any = None) -> Iterator[Any]:
    """
    Yield the first lane of each cell of a column, and of its fields.

    :param way: names and types of the enclosing structs.
    :param absent: rows in which one of those is null; None for none.
    """
    is_struct = pa.types.is_struct(column.type)
    lane = _validity(name, column, way) if is_struct else _column(name, column, way)
    if absent is not None:
        # The second lane of 0 is 0 too.
        lane[absent] = 0
    yield lane
    if not is_struct:
        return
    way = _way(name, "struct", way)
    if column.null_count:
        nulls = _nulls(column)
        absent = nulls if absent is None else absent | nulls
    for number in range(column.type.num_fields):
        # Not flatten: it copies each field if the struct has nulls.
        yield from _lanes(column.type.field(number).name, column.field(number), way, absent)


def _validity(name: str, column: pa.Array, way: str) -> Any:
    """Return the first lane of the structs themselves: whether they are null."""
    seed = _seed(name, "struct", way)
    lane = np.full(len(column), _finalise(np.array([seed], dtype=U64))[0], dtype=U64)
    if column.null_count:
        lane[_nulls(column)] = _finalise(np.array([seed ^ _NULL], dtype=U64))[0]
    return lane


def _sum(values: Any) -> int:
    """Add 64-bit numbers without overflow."""
    return int(np.sum(values & U64(0xFFFFFFFF), dtype=U64)) + (
        int(np.sum(values >> U64(32), dtype=U64)) << 32
    )


def _finalise(values: Any) -> Any:
    """Mix each 64-bit number with itself, in place."""
    values ^= values >> U64(30)
    values *= _ODD_1
    values ^= values >> U64(27)
    values *= _ODD_2
    values ^= values >> U64(31)
    return values


def _way(name: str, type_class: str, way: str) -> str:
    return f"{way}{len(name)}:{name}:{type_class}"


@lru_cache(maxsize=4096)
def _seed(name: str, type_class: str, way: str) -> Any:
    digest = hashlib.blake2b(_way(name, type_class, way).encode(), digest_size=8).digest()
    return U64(int.from_bytes(digest, "little"))


def _column(name: str, column: pa.Array, way: str) -> Any:
    column, type_class = _plain(name, column)
    seed = _seed(name, type_class, way)
    null = _finalise(np.array([seed ^ _NULL], dtype=U64))[0]
    if column.null_count == len(column):
        return np.full(len(column), null, dtype=U64)
    lane = _variable(column, seed) if pa.types.is_binary(column.type) else _fixed(column, seed)
    if column.null_count:
        lane[_nulls(column)] = null
    return lane


def _nulls(column: pa.Array) -> Any:
    """Return which cells are null, from Arrow's buffer: numpy's conversion would import pandas."""
    bits = np.frombuffer(column.buffers()[0], dtype=np.uint8)
    return np.unpackbits(bits, bitorder="little")[column.offset :][: len(column)] == 0


def _plain(name: str, column: pa.Array) -> tuple[pa.Array, str]:
    """
    Convert equivalent types, and those that Parquet does not distinguish, to one.

    :return: an array of a fixed width or of type binary, and the name of its logical type.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(name, column.dictionary_decode())
    if str(kind) in ("large_string", "string_view"):
        return column.cast(pa.string()).view(pa.binary()), "string"
    if pa.types.is_string(kind):
        return column.view(pa.binary()), "string"
    if str(kind) in ("large_binary", "binary_view"):
        return column.cast(pa.binary()), "binary"
    if pa.types.is_timestamp(kind) and kind.unit == "s":
        column = column.cast(pa.timestamp("ms", kind.tz))
    elif pa.types.is_time32(kind) and kind.unit == "s":
        column = column.cast(pa.time32("ms"))
    elif pa.types.is_date64(kind):
        column = column.cast(pa.date32())
    elif pa.types.is_boolean(kind):
        return column.cast(pa.uint8()), "bool"
    elif pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType):
        raise ColumnTypeError(
            f"column {name!r} has type {kind}, which has no checksum", column=name, type=str(kind)
        )
    return column, str(column.type)


def _fixed(column: pa.Array, seed: Any) -> Any:
    """Hash cells of a fixed width from Arrow's buffer; the bits of nulls are undefined."""
    width = column.type.bit_width // 8
    raw = np.frombuffer(column.buffers()[1], dtype=np.uint8)
    raw = raw[column.offset * width : (column.offset + len(column)) * width]
    if pa.types.is_floating(column.type):
        values = raw.view(f"<f{width}")
        # Adding 0 turns -0.0 into 0.0; all bit patterns of NaN become one.
        values = np.where(
            np.isnan(values), np.array(np.nan, values.dtype), values + np.array(0, values.dtype)
        )
        raw = values.view(np.uint8)
    if width in (1, 2, 4, 8):
        lane: Any = raw.view(f"<u{width}").astype(U64)
        lane ^= seed
        return _finalise(lane)
    words = -(-width // 8)
    padded = np.zeros((len(column), words * 8), dtype=np.uint8)
    padded[:, :width] = raw.reshape(len(column), width)
    lane = np.full(len(column), seed, dtype=U64)
    for number, word in enumerate(padded.view("<u8").T):
        lane += _finalise(word ^ _word_seed(seed, number))
    return _finalise(lane)


def _word_seed(seed: Any, number: int) -> Any:
    return U64((int(seed) + (number + 1) * int(_GOLDEN)) % (1 << 64))


def _variable(column: pa.Array, seed: Any) -> Any:
    """Hash byte strings: their words of 8 bytes, with their positions, and their length."""
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, dtype="<i4")[column.offset : column.offset + len(column) + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    # Eight bytes of padding, so that a word can be read from the last byte on.
    padded = np.zeros(last - first + 8, dtype=np.uint8)
    if last > first:
        padded[:-8] = np.frombuffer(data, dtype=np.uint8)[first:last]
    words = np.ndarray((last - first + 1,), dtype="<u8", buffer=padded, strides=(1,))
    starts = (offsets[:-1] - first).astype(np.int64)
    lengths = np.diff(offsets).astype(np.int64)
    lane = lengths.astype(U64)
    lane += seed
    longest = int(lengths.max())
    # Values of one length, such as ULIDs and times, are evenly spaced and need no lookup.
    is_even = longest > 0 and int(lengths.min()) == longest
    for number in range(min(-(-longest // 8), _SHORT_WORDS)):
        if is_even:
            word = words[8 * number :: longest][: len(column)] & _KEEP[min(longest - 8 * number, 8)]
            word ^= _word_seed(seed, number)
            lane += _finalise(word)
        else:
            _add_word(lane, words, starts, lengths, number, _word_seed(seed, number))
    if longest > 8 * _SHORT_WORDS:
        _add_rest(lane, words, starts, lengths, seed)
    return _finalise(lane)


def _add_word(lane: Any, words: Any, starts: Any, lengths: Any, number: int, place: Any) -> None:
    """Add the n-th word of every value that has one."""
    left = lengths - 8 * number
    some = None if int(left.min()) > 0 else np.flatnonzero(left > 0)
    if some is not None:
        starts, left = starts[some], left[some]
    word = words[starts + 8 * number] & _KEEP[np.minimum(left, 8)]
    word ^= place
    _finalise(word)
    if some is None:
        lane += word
    else:
        lane[some] += word


def _add_rest(lane: Any, words: Any, starts: Any, lengths: Any, seed: Any) -> None:
    skip = 8 * _SHORT_WORDS
    some = np.flatnonzero(lengths > skip)
    left = lengths[some] - skip
    counts = -(-left // 8)
    ends = np.cumsum(counts)
    begins = ends - counts
    numbers = np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(begins, counts)
    word = words[np.repeat(starts[some] + skip, counts) + 8 * numbers]
    word[ends - 1] &= _KEEP[left - 8 * (counts - 1)]
    word ^= (numbers + _SHORT_WORDS + 1).astype(U64) * _GOLDEN + seed
    _finalise(word)
    lane[some] += np.add.reduceat(word, begins)
