# SPDX-License-Identifier: Apache-2.0
"""Columns as JSON: every type exactly, whatever the values and wherever a batch begins."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.capture import values
from airflow_changefeed.capture.values import as_json, joined, json_texts
from airflow_changefeed.exceptions import ColumnTypeError

_Read = Callable[[Any], Any]
_BLOB = st.binary(max_size=40)
_TEXT = st.text(max_size=40)
_MOMENT = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))


def _same(value: Any) -> Any:
    return value


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    most = 10**precision - 1
    return st.integers(-most, most).map(lambda number: Decimal((number < 0, _digits(number), -scale)))


def _digits(number: int) -> tuple[int, ...]:
    return tuple(int(digit) for digit in str(abs(number)))


#: Of each type: its values, and how what JSON says of one is read back.
TYPES: dict[pa.DataType, tuple[st.SearchStrategy[Any], _Read]] = {
    pa.bool_(): (st.booleans(), _same),
    pa.uint8(): (st.integers(0, 255), _same),
    pa.int16(): (st.integers(-(2**15), 2**15 - 1), _same),
    pa.int32(): (st.integers(-(2**31), 2**31 - 1), _same),
    pa.int64(): (st.integers(-(2**63), 2**63 - 1), _same),
    pa.uint64(): (st.integers(0, 2**64 - 1), _same),
    pa.decimal128(38, 0): (_decimals(38, 0), Decimal),
    pa.decimal128(19, 4): (_decimals(19, 4), Decimal),
    pa.decimal128(20, 6): (_decimals(20, 6), Decimal),
    pa.decimal128(20, 7): (_decimals(20, 7), Decimal),
    pa.decimal128(38, 38): (_decimals(38, 38), Decimal),
    pa.float64(): (st.floats(allow_nan=False, allow_infinity=False), float),
    pa.float32(): (
        st.floats(width=32, allow_nan=False, allow_infinity=False),
        lambda one: float(np.float32(one)),
    ),
    pa.string(): (_TEXT, _same),
    pa.large_string(): (_TEXT, _same),
    pa.binary(): (_BLOB, lambda one: base64.b64decode(one, validate=True)),
    pa.large_binary(): (_BLOB, lambda one: base64.b64decode(one, validate=True)),
    pa.binary(8): (st.binary(min_size=8, max_size=8), lambda one: base64.b64decode(one, validate=True)),
    pa.date32(): (st.dates(), date.fromisoformat),
    pa.time64("us"): (st.times(), time.fromisoformat),
    pa.timestamp("us"): (_MOMENT, datetime.fromisoformat),
    pa.timestamp("us", "UTC"): (
        _MOMENT.map(lambda one: one.replace(tzinfo=timezone.utc)),
        lambda one: datetime.fromisoformat(one.removesuffix("Z") + "+00:00"),
    ),
}


def read(column: pa.Array, **second: pa.Array) -> list[Any]:
    """Return what a reader makes of a column's JSON."""
    found = json_texts("c", column, **second)
    texts = found.texts.to_pylist()
    return [
        None if text is None else json.loads(f'"{text}"' if found.is_quoted else text, parse_float=Decimal)
        for text in texts
    ]


@pytest.mark.parametrize("kind", TYPES, ids=str)
@given(data=st.data())
def test_json_has_the_same_value(kind: pa.DataType, data: st.DataObject) -> None:
    """Whatever the values, the nulls, and the batch that a column is a part of."""
    own, back = TYPES[kind]
    given_values = data.draw(st.lists(st.none() | own, max_size=8))
    cut = data.draw(st.integers(0, len(given_values)))
    column = pa.array(given_values, kind).slice(cut)
    found = [None if one is None else back(one) for one in read(column)]
    assert found == given_values[cut:]
    assert [one.as_tuple() for one in found if isinstance(one, Decimal)] == [
        one.as_tuple() for one in given_values[cut:] if isinstance(one, Decimal)
    ]


@given(
    st.lists(st.none() | st.tuples(_MOMENT, st.integers(0, 9), st.integers(-840, 840)), max_size=6),
    st.integers(0, 3),
)
def test_second_columns_are_folded_back(moments: list[tuple[datetime, int, int] | None], cut: int) -> None:
    """A datetimeoffset(7) has seven digits and its own offset, and is the same instant."""
    edge = timedelta(days=1)
    known = [one if one and datetime.min + edge < one[0] < datetime.max - edge else None for one in moments]
    instants, ticks, offsets = (
        pa.array([None if one is None else one[place] for one in known], kind).slice(cut)
        for place, kind in enumerate((pa.timestamp("us", "UTC"), pa.uint8(), pa.int16()))
    )
    for text, one in zip(read(instants, ticks=ticks, offsets=offsets), known[cut:], strict=True):
        if one is None:
            assert text is None
            continue
        moment, digit, minutes = one
        seconds, zone = text[:-6], text[-6:]
        assert len(seconds.partition(".")[2]) == 7
        assert seconds[-1] == str(digit)
        assert zone == f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
        assert datetime.fromisoformat(seconds[:-1]) - timedelta(minutes=minutes) == moment


def test_times_of_the_day_and_datetime2_have_seven_digits() -> None:
    """The seventh digit stands behind the six that Arrow has; a value that is null stays null."""
    ticks = pa.array([0, 7, None], pa.uint8())
    moments = pa.array(
        [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), None], pa.timestamp("us")
    )
    assert read(moments, ticks=ticks) == ["0001-01-01T00:00:00.0000000", "9999-12-31T23:59:59.9999997", None]
    times = pa.array([time(0), time(1, 2, 3, 4), None], pa.time64("us"))
    assert read(times, ticks=ticks) == ["00:00:00.0000000", "01:02:03.0000047", None]


def test_what_json_has_no_number_for_is_its_name() -> None:
    """SQLite holds infinities; JSON must stay JSON, and keep zero's sign."""
    column = pa.array([math.inf, -math.inf, math.nan, -0.0, 1e22, 5e-324, None])
    found = read(column)
    assert found[:3] == ["Infinity", "-Infinity", "NaN"]
    assert str(found[3]) == "-0.0"
    assert [float(one) for one in found[4:6]] == [1e22, 5e-324]
    assert found[6] is None


def test_decimals_are_written_in_full() -> None:
    """No exponents, and no digit less than the column has."""
    column = pa.array([Decimal("0.0000001"), Decimal("-0.0000001"), Decimal(0), None], pa.decimal128(20, 10))
    texts = json_texts("c", column).texts.to_pylist()
    assert texts == ["0.0000001000", "-0.0000001000", "0.0000000000", None]


def test_text_is_escaped_where_json_wants_it() -> None:
    """Control characters, quotes and backslashes; all else, beyond the first plane too, stays UTF-8."""
    text = "".join(map(chr, range(0x80))) + "\u2028\u00e9\U0001d11e\\u0041\\n"
    column = pa.array([text, None, "plain", ""])
    assert read(column) == [text, None, "plain", ""]
    (written, *_) = json_texts("c", column).texts.to_pylist()
    assert "\U0001d11e" in written
    assert not any(ord(character) < 0x20 for character in written)


def test_dictionaries_are_what_they_stand_for() -> None:
    """A column that a driver gives as a dictionary has the same JSON."""
    assert read(pa.array(["a", "b", None, "a"]).dictionary_encode()) == ["a", "b", None, "a"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.duration("us"),
        pa.date64(),
        pa.decimal256(50, 2),
    ],
    ids=str,
)
def test_a_type_without_a_form_is_refused(kind: pa.DataType) -> None:
    """The error names the column, its type and what to do."""
    with pytest.raises(ColumnTypeError, match=r"column 'c' has type .*shape='typed'"):
        json_texts("c", pa.nulls(0, kind))


def test_more_json_than_arrow_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to lower, instead of whatever Arrow would say."""
    monkeypatch.setattr(values, "MAX_TEXT_BYTES", 100)
    assert joined(["[", pa.array(["x" * 20]), "]"]).to_pylist() == ["[" + "x" * 20 + "]"]
    with pytest.raises(ColumnTypeError, match="lower batch_rows"):
        joined(["[", pa.array(["x" * 20] * 5), "]"])
    with pytest.raises(ColumnTypeError, match="base64; lower batch_rows"):
        json_texts("c", pa.array([b"x" * 90]))


def test_keys_are_json_texts() -> None:
    """Names may hold anything."""
    name = 'a "b"\\ \U0001d11e'
    assert json.loads(as_json(name)) == name
    assert as_json({"a": None, "b": 1}) == '{"a":null,"b":1}'
