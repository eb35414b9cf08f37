# SPDX-License-Identifier: Apache-2.0
"""What a Parquet footer says of its rows: wider than they are is right, narrower would lose them."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.export.verify import Extent, MisleadingFooterError

NAN, INFINITE = float("nan"), float("inf")
COLUMNS = {
    "decimal": pa.array([Decimal("1.23"), Decimal("-99999999.10"), None], pa.decimal128(38, 2)),
    "milliseconds": pa.array([datetime(2013, 1, 1), datetime(1, 1, 1), None], pa.timestamp("ms", "UTC")),
    "microseconds": pa.array([datetime(1, 1, 1), datetime(9999, 12, 31), None], pa.timestamp("us")),
    "zoned": pa.array([datetime(2013, 1, 1), None, None], pa.timestamp("us", "+02:00")),
    "date": pa.array([date(1, 1, 1), date(9999, 12, 31), None]),
    "time": pa.array([time(1, 2, 3, 4), None, time(23, 59)], pa.time64("us")),
    "binary": pa.array([b"", b"\xff\xff", b"\x00"]),
    "fixed": pa.array([b"ab", b"\xff\xff", None], pa.binary(2)),
    "text": pa.array(["", "ø\U0001f600", "z"]),
    "long text": pa.array(["a" * 9_000, "b" * 9_000, None]),
    "unsigned": pa.array([0, 2**32 - 1, 1], pa.uint32()),
    "whole": pa.array([-(2**63), 2**63 - 1, 0]),
    "boolean": pa.array([True, False, None]),
    "float": pa.array([INFINITE, NAN, -INFINITE]),
    "no number": pa.array([NAN, NAN, NAN]),
    "zeros": pa.array([-0.0, 0.0, -0.0]),
    "nulls": pa.array([None, None, None], pa.string()),
    "a.b": pa.array([1, 2, 3]),
}


def written(path: Path) -> pq.RowGroupMetaData:
    """The footer of a file with a column of each type."""
    pq.write_table(pa.table(COLUMNS), path)
    return pq.ParquetFile(path).metadata.row_group(0)


def extent(table: pa.Table) -> Extent:
    """What is in a table, in batches of a row."""
    found = Extent()
    for batch in table.to_batches(max_chunksize=1):
        found.add(batch)
    return found


def test_a_footer_is_right_for_every_type(tmp_path: Path) -> None:
    """As the writer leaves it, whatever it says of the type; no false alarm."""
    extent(pa.table(COLUMNS)).check(written(tmp_path / "x.parquet"))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("whole", [7, 2**63 - 1, -(2**63)]),
        ("a.b", [1, 2, 4]),
        ("a.b", [0, 2, 3]),
        ("zeros", [None, 0.0, 0.0]),
    ],
    ids=["fits", "above", "below", "nulls"],
)
def test_what_a_footer_leaves_out_is_named(tmp_path: Path, name: str, values: list[object]) -> None:
    """Its column, and nothing where the bounds are wide enough."""
    footer = written(tmp_path / "x.parquet")
    column = pa.array(values, COLUMNS[name].type)
    found = extent(pa.table({**COLUMNS, name: column}))
    if name == "whole":
        found.check(footer)
        return
    with pytest.raises(MisleadingFooterError, match=f"do not cover all values of '{name}'$"):
        found.check(footer)


def test_rows_that_a_footer_leaves_out_are_named(tmp_path: Path) -> None:
    """Readers that count take their number from it."""
    footer = written(tmp_path / "x.parquet")
    with pytest.raises(MisleadingFooterError, match="do not cover all values of rows"):
        extent(pa.concat_tables([pa.table(COLUMNS)] * 2)).check(footer)
