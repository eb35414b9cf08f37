# SPDX-License-Identifier: Apache-2.0
"""ULIDs in Arrow columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.arrow import ulid_bytes, ulid_texts, ulid_times

ULIDS = st.binary(min_size=16, max_size=16)
#: Arrow's milliseconds are signed 64-bit, a ULID's 48-bit: every time fits; Python's end with the year 9999.
EXTREMES = [bytes(16), b"\xff" * 16, Ulid.floor_milliseconds(1).bytes, bytes(6) + b"\xff" * 10]


@given(st.lists(ULIDS, max_size=40))
def test_texts_are_those_of_python_ulid(values: list[bytes]) -> None:
    """Encoding a column gives what python-ulid gives for each value."""
    raw = ulid_bytes(pa.array(values + EXTREMES, type=pa.binary()))
    assert ulid_texts(raw).to_pylist() == [str(Ulid.of_bytes(value)) for value in values + EXTREMES]


@given(st.lists(ULIDS, max_size=40))
def test_times_are_the_first_48_bits(values: list[bytes]) -> None:
    """A ULID's time is its first 48 bits, in milliseconds, up to the last one."""
    raw = ulid_bytes(pa.array(values + EXTREMES, type=pa.binary()))
    found = ulid_times(raw).cast(pa.int64()).to_pylist()
    assert found == [Ulid.of_bytes(value).ms for value in values + EXTREMES]


@pytest.mark.parametrize("type_", [pa.binary(), pa.binary(16)])
def test_a_slice_gives_its_own_rows(type_: pa.DataType) -> None:
    """An array with an offset gives the ULIDs of its rows, not those before it."""
    values = [Ulid.of_int(number).bytes for number in range(10)]
    column = pa.array(values, type=type_).slice(3, 4)
    assert [bytes(row) for row in ulid_bytes(column)] == values[3:7]


def test_no_rows_give_empty_columns() -> None:
    """An empty column stays one."""
    raw = ulid_bytes(pa.array([], type=pa.binary()))
    assert len(ulid_texts(raw)) == len(ulid_times(raw)) == 0
