# SPDX-License-Identifier: Apache-2.0
"""
Arrow columns as JSON texts, exactly, and without a Python loop over the rows.

docs/reference/event-shapes.md lists the form of each type. Second columns (ADR 0006) are merged back into
their value.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.sources.arrow import byte_strings

#: Maximum bytes of an Arrow text column, whose offsets have 31 bits.
MAX_TEXT_BYTES = (1 << 31) - 1
_BACKSLASH = 0x5C
#: Bytes that JSON requires to be escaped; the backslash first, because the other escapes contain one.
_ESCAPED = (_BACKSLASH, 0x22, *range(0x20))
#: Scale from which Arrow writes small decimals with an exponent.
_EXPONENT_SCALE = 7
_MINUTE_US = 60_000_000
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class JsonTexts:
    """
    A column of JSON values.

    :param texts: null for null values.
    :param is_quoted: whether the texts go between quotes.
    """

    texts: pa.Array
    is_quoted: bool


def text_scalar(value: str) -> pa.Scalar:
    """Return a text for Arrow's functions."""
    return byte_strings([value], pa.string())[0]


def as_json(value: object) -> str:
    """Return a value as compact JSON; non-ASCII text stays unescaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def joined(pieces: Sequence[pa.Array | str], *, null: str | None = None) -> pa.Array:
    """
    Put pieces together row by row.

    :param pieces: at least one is a column of texts.
    :param null: replacement for a null; None makes the whole text null.
    :raises ColumnTypeError: more than an Arrow text column holds.
    """
    columns = [piece for piece in pieces if isinstance(piece, pa.Array)]
    around = sum(len(piece.encode()) for piece in pieces if isinstance(piece, str))
    if sum(column.nbytes for column in columns) + around * len(columns[0]) > MAX_TEXT_BYTES:
        raise ColumnTypeError(
            f"{len(columns[0])} events are more than {MAX_TEXT_BYTES} bytes of JSON, the limit of an Arrow "
            "text column; lower batch_rows, or if a single event is larger, export with shape='typed'"
        )
    given = [text_scalar(piece) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(
        *given,
        text_scalar(""),
        null_handling="emit_null" if null is None else "replace",
        null_replacement=null or "",
    )


def json_texts(
    name: str, column: pa.Array, *, ticks: pa.Array | None = None, offsets: pa.Array | None = None
) -> JsonTexts:
    """
    Return a column's values as JSON.

    :param ticks: seventh digits of the seconds; None without any.
    :param offsets: minutes that the values' own time zones are ahead of UTC; None without any.
    :raises ColumnTypeError: the type has no JSON form.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return json_texts(name, column.dictionary_decode(), ticks=ticks, offsets=offsets)
    numbers = _numbers(column)
    if numbers is not None:
        return JsonTexts(numbers, is_quoted=False)
    texts = _times(column, ticks, offsets) if pa.types.is_temporal(kind) else _strings(column)
    if texts is None:
        raise ColumnTypeError(
            f"column {name!r} has type {kind}, which has no JSON form; export with shape='typed', or leave "
            "the column out of the capture",
            column=name,
            type=str(kind),
        )
    return JsonTexts(texts, is_quoted=True)


def _numbers(column: pa.Array) -> pa.Array | None:
    """Return numbers and truth values; None for another type."""
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return column.cast(pa.string())
    if pa.types.is_floating(kind):
        return _floats(column)
    return _decimals(column) if pa.types.is_decimal128(kind) else None


def _strings(column: pa.Array) -> pa.Array | None:
    """Return texts and byte strings, without quotes; None for another type."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _escaped(column.cast(pa.string()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _base64(column.cast(pa.binary()))
    return None


def _times(column: pa.Array, ticks: pa.Array | None, offsets: pa.Array | None) -> pa.Array | None:
    """Return dates and times as ISO 8601; None for another type."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _timestamps(column, ticks, offsets)
    if pa.types.is_time(kind):
        return _with_ticks(column.cast(pa.string()), ticks)
    return column.cast(pa.string()) if pa.types.is_date32(kind) else None


def _floats(column: pa.Array) -> pa.Array:
    """Write the shortest digits that round-trip; NaN and infinities, which JSON lacks, by name."""
    texts = column.cast(pa.string())
    is_finite = pc.is_finite(column)
    if not pc.all(is_finite, min_count=0).as_py():
        names = byte_strings([as_json(word) for word in _NOT_FINITE], pa.string())
        place = pc.index_in(texts, value_set=byte_strings(["nan", "inf", "-inf"], pa.string()))
        texts = pc.if_else(is_finite, texts, names.take(place))
    # Readers parse a zero without a decimal point as an integer, which loses the sign.
    is_minus_zero = pc.equal(texts, text_scalar("-0"))
    has_any = pc.any(is_minus_zero, min_count=0).as_py()
    return pc.if_else(is_minus_zero, text_scalar("-0.0"), texts) if has_any else texts


def _decimals(column: pa.Array) -> pa.Array:
    """Write all digits, without an exponent."""
    scale = column.type.scale
    if scale < _EXPONENT_SCALE:
        return column.cast(pa.string())
    whole_type = pa.decimal128(38, 0)
    unscaled = pa.Array.from_buffers(whole_type, len(column), column.buffers(), offset=column.offset)
    texts = unscaled.cast(pa.string())
    is_negative = pc.starts_with(texts, "-")
    digits = pc.utf8_lpad(pc.utf8_ltrim(texts, "-"), width=scale + 1, padding="0")
    sign = pc.if_else(is_negative, text_scalar("-"), text_scalar(""))
    before = pc.utf8_slice_codeunits(digits, 0, -scale)
    return joined([sign, before, ".", pc.utf8_slice_codeunits(digits, -scale)])


def _escaped(column: pa.Array) -> pa.Array:
    """Escape text for JSON; the usual text, with nothing to escape, is returned as is."""
    offsets, data = column.buffers()[1:]
    if not len(column) or data is None:
        return column
    ends = np.frombuffer(offsets, dtype=np.int32)
    first, last = ends[column.offset], ends[column.offset + len(column)]
    counts = np.bincount(np.frombuffer(data, dtype=np.uint8)[first:last], minlength=_BACKSLASH + 1)
    for byte in _ESCAPED:
        if counts[byte]:
            character = chr(byte)
            column = pc.replace_substring(column, character, as_json(character)[1:-1])
    return column


def _base64(column: pa.Array) -> pa.Array:
    """Encode byte strings all at once, each padded to a multiple of three so that its base64 is separate."""
    column = column if column.offset == 0 else pa.concat_arrays([column])
    validity, offset_buffer, data = column.buffers()
    rows = len(column)
    offsets = np.frombuffer(offset_buffer, dtype=np.int32)[: rows + 1].astype(np.int64) if rows else _ZERO
    lengths = np.diff(offsets)
    ends = np.cumsum(-(-lengths // 3))
    begins = ends - -(-lengths // 3)
    total = int(ends[-1]) if rows else 0
    if 4 * total > MAX_TEXT_BYTES:
        raise ColumnTypeError(
            f"{rows} byte strings are more than {MAX_TEXT_BYTES} bytes of base64; lower batch_rows, or if a "
            "single one is larger, export with shape='typed'"
        )
    filled = np.zeros(3 * total, dtype=np.uint8)
    if total:
        raw = np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]
        filled[np.arange(len(raw)) + np.repeat(3 * begins - (offsets[:-1] - offsets[0]), lengths)] = raw
    text = np.frombuffer(bytearray(binascii.b2a_base64(filled.data, newline=False)), dtype=np.uint8)
    left = lengths % 3
    text[4 * ends[left > 0] - 1] = ord("=")
    text[4 * ends[left == 1] - 2] = ord("=")
    out = np.concatenate([_ZERO, 4 * ends]).astype(np.int32)
    return pa.Array.from_buffers(pa.string(), rows, [validity, pa.py_buffer(out), pa.py_buffer(text)])


_ZERO = np.zeros(1, dtype=np.int64)


def _with_ticks(texts: pa.Array, ticks: pa.Array | None) -> pa.Array:
    """Append the seventh digit of the seconds to Arrow's six."""
    return texts if ticks is None else joined([texts, joined([ticks.cast(pa.string())], null="0")])


def _timestamps(column: pa.Array, ticks: pa.Array | None, offsets: pa.Array | None) -> pa.Array:
    kind = column.type
    plain = pa.timestamp(kind.unit)
    numbers = column.view(pa.int64())
    if offsets is not None:
        minutes = pc.multiply(offsets.cast(pa.int64()), _one(_MINUTE_US))
        numbers = pc.add(numbers, pc.fill_null(minutes, _one(0)))
    texts = pc.utf8_replace_slice(numbers.view(plain).cast(pa.string()), start=10, stop=11, replacement="T")
    texts = _with_ticks(texts, ticks)
    if offsets is not None:
        return joined([texts, _zones(offsets)])
    return joined([texts, "Z"]) if kind.tz is not None else texts


def _zones(offsets: pa.Array) -> pa.Array:
    """Write offsets as in ISO 8601: ``+05:30``; each distinct one is formatted once."""
    found = pc.fill_null(offsets.cast(pa.int64()), _one(0)).dictionary_encode()
    texts = []
    for minutes in found.dictionary.to_pylist():
        hours, rest = divmod(abs(minutes), 60)
        texts.append(f"{'-' if minutes < 0 else '+'}{hours:02d}:{rest:02d}")
    return byte_strings(texts, pa.string()).take(found.indices)


def _one(value: int) -> pa.Scalar:
    numbers = pa.py_buffer(np.array([value], dtype=np.int64))
    return pa.Array.from_buffers(pa.int64(), 1, [None, numbers])[0]
