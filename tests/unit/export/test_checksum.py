# SPDX-License-Identifier: Apache-2.0
"""The checksum of a set of rows."""

from __future__ import annotations

import io
import random
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.export.checksum import checksum

ROW = pa.struct([("a", pa.int64()), ("b", pa.string()), ("inner", pa.struct([("c", pa.bool_())]))])
# What each type may hold; every one of them goes to Parquet and back.
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=True),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.string(): st.text(max_size=80),
    pa.binary(): st.binary(max_size=80),
    pa.binary(16): st.binary(min_size=16, max_size=16),
    pa.decimal128(20, 4): st.integers(-(10**19), 10**19).map(lambda i: Decimal(i).scaleb(-4)),
    pa.date32(): st.dates(),
    pa.timestamp("ms", "UTC"): st.integers(0, 2**40),
    pa.timestamp("us"): st.integers(0, 2**50),
    ROW: st.fixed_dictionaries(
        {
            "a": st.none() | st.integers(-9, 9),
            "b": st.none() | st.text(max_size=3),
            "inner": st.none() | st.fixed_dictionaries({"c": st.none() | st.booleans()}),
        }
    ),
}


@st.composite
def tables(draw: st.DrawFn, min_rows: int = 1) -> pa.Table:
    """Tables of a few columns of any type, with nulls."""
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    rows = draw(st.integers(min_rows, 12))
    columns = {
        f"c{number}": pa.array(
            draw(st.lists(st.none() | VALUES[kind], min_size=rows, max_size=rows)), type=kind
        )
        for number, kind in enumerate(kinds)
    }
    return pa.table(columns)


@given(tables(), st.randoms(use_true_random=False))
def test_order_of_rows_and_columns_does_not_matter(table: pa.Table, shuffle: random.Random) -> None:
    """The same rows in another order, with columns in another order, have the same checksum."""
    order, names = list(range(len(table))), list(table.column_names)
    shuffle.shuffle(order)
    shuffle.shuffle(names)
    assert checksum(table.take(order).select(names)) == checksum(table)


@given(tables(), st.integers(0, 12))
def test_chunks_and_slices_do_not_matter(table: pa.Table, cut: int) -> None:
    """Parts add up to the whole, wherever it is cut."""
    cut = min(cut, len(table))
    parts = [table.slice(0, cut), table.slice(cut)]
    assert sum(map(checksum, parts)) % (1 << 128) == checksum(table) == checksum(pa.concat_tables(parts))


@given(tables())
def test_rows_come_back_from_parquet_with_their_checksum(table: pa.Table) -> None:
    """Writing and reading Parquet changes nothing."""
    sink = io.BytesIO()
    pq.write_table(table, sink)
    sink.seek(0)
    assert checksum(pq.read_table(sink)) == checksum(table)


@given(tables(), st.data())
def test_one_changed_cell_changes_it(table: pa.Table, data: st.DataObject) -> None:
    """Another value in any cell, or a null, gives another checksum."""
    name = data.draw(st.sampled_from(table.column_names))
    kind, values = table.schema.field(name).type, table[name].to_pylist()
    row = data.draw(st.integers(0, len(table) - 1))
    other = data.draw(st.none() | VALUES[kind])
    before = pa.array([values[row]], type=kind)
    after = pa.array([other], type=kind)
    same = before.equals(after) or str(before[0]) == str(after[0]) or (other == 0 and values[row] == 0)
    changed = [*values[:row], other, *values[row + 1 :]]
    index = table.column_names.index(name)
    result = checksum(table.set_column(index, name, pa.array(changed, type=kind)))
    assert (result == checksum(table)) == same


@given(st.binary(min_size=1, max_size=200), st.data())
def test_one_changed_byte_changes_it(value: bytes, data: st.DataObject) -> None:
    """A single bit of a long value, wherever it is, counts."""
    place = data.draw(st.integers(0, len(value) - 1))
    other = bytearray(value)
    other[place] ^= 1 << data.draw(st.integers(0, 7))
    values = [pa.table({"v": pa.array([each], pa.binary())}) for each in (value, bytes(other))]
    assert checksum(values[0]) != checksum(values[1])


def test_null_empty_and_zero_differ() -> None:
    """Null, the empty string, a NUL character, zero and False are five different things."""
    cells = [
        pa.array([None], pa.string()),
        pa.array([""], pa.string()),
        pa.array(["\0"], pa.string()),
        pa.array([b""], pa.binary()),
        pa.array([0], pa.int64()),
        pa.array([0], pa.int32()),
        pa.array([None], pa.int64()),
        pa.array([False], pa.bool_()),
        pa.array([0.0], pa.float64()),
        pa.array([None], pa.null()),
    ]
    assert len({checksum(pa.table({"v": cell})) for cell in cells}) == len(cells)


def test_the_name_of_a_column_counts() -> None:
    """Two columns that swap their values, or names, are not the same rows."""
    table = pa.table({"a": [1, 2], "b": [2, 1]})
    assert checksum(table) != checksum(table.rename_columns(["b", "c"]))
    assert checksum(pa.table({"a": [1], "b": [2]})) != checksum(pa.table({"a": [2], "b": [1]}))


def test_rows_of_a_pair_cannot_be_exchanged() -> None:
    """Cells belong to their row: exchanging one column's values between rows is a change."""
    assert checksum(pa.table({"a": [1, 2], "b": [3, 4]})) != checksum(pa.table({"a": [1, 2], "b": [4, 3]}))


def test_a_row_twice_is_not_a_row_once() -> None:
    """The sum counts repetitions, also a third one, unlike an exclusive or."""
    once = pa.table({"a": [1]})
    assert len({checksum(pa.concat_tables([once] * times)) for times in range(1, 5)}) == 4
    assert checksum(once.slice(1)) == 0


def test_types_that_mean_the_same_have_one_checksum() -> None:
    """Large strings, dictionaries and seconds are the same as what Parquet gives back for them."""
    strings = pa.array(["a", None, "bc" * 30])
    expected = checksum(pa.table({"v": strings}))
    for kind in (pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()):
        assert checksum(pa.table({"v": strings.cast(kind)})) == expected
    times = pa.array([datetime(2013, 1, 1, tzinfo=timezone.utc)], pa.timestamp("s", "UTC"))
    assert checksum(pa.table({"v": times})) == checksum(
        pa.table({"v": times.cast(pa.timestamp("ms", "UTC"))})
    )
    days = pa.array([date(2013, 1, 1)], pa.date32())
    assert checksum(pa.table({"v": days})) == checksum(pa.table({"v": days.cast(pa.date64())}))


def test_the_zeros_and_the_nans_are_one() -> None:
    """-0.0 equals 0.0, and all bit patterns of "not a number" are the same."""
    assert checksum(pa.table({"v": [-0.0]})) == checksum(pa.table({"v": [0.0]}))
    odd = pa.Array.from_buffers(pa.float64(), 1, [None, pa.py_buffer(b"\x01\0\0\0\0\0\xf8\xff")])
    assert checksum(pa.table({"v": odd})) == checksum(pa.table({"v": [float("nan")]}))


def test_it_is_the_same_for_ever() -> None:
    """The checksum is part of the manifest's format: these rows have this one everywhere."""
    table = pa.table(
        {
            "changefeed_ulid": pa.array(["01ARZ3NDEKTSV4RRFFQ69G5FAV", "01ARZ3NDEKTSV4RRFFQ69G5FAW"]),
            "n": pa.array([1, None], pa.int64()),
            "f": pa.array([0.5, -1.0]),
            "t": pa.array(["", "a text of more than thirty-two bytes, for the long way"]),
            "d": pa.array([Decimal("1.25"), Decimal("-3.00")], pa.decimal128(12, 2)),
        }
    )
    assert f"{checksum(table):032x}" == "c47e6e703387576157e5f5aa05192b00"


def test_nested_columns_are_refused() -> None:
    """A column that has no checksum is named, not left out."""
    with pytest.raises(ColumnTypeError, match="'v'"):
        checksum(pa.table({"v": [[1, 2]]}))
