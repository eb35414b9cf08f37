# SPDX-License-Identifier: Apache-2.0
"""What is exported of each type of SQL Server, read by Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.feed import Column
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.sources.mssql.feed.feed import parse
from airflow_changefeed.sources.mssql.feed.mapping import parts
from airflow_changefeed.spark.read import check_times, spark_type
from airflow_changefeed.spark.version_compat import HAS_TIME_TYPE
from tests.mssql_types import CASES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROWS = max(len(case.values) for case in CASES)
TIMES = "spark.sql.timeType.enabled"


def _columns() -> dict[str, pa.Array]:
    """Return what is exported of all types, a column for each part of a value."""
    columns = {}
    for number, case in enumerate(CASES):
        for place, part in enumerate(parts(parse(Column("c", case.type)))):
            values = [expected[place] for _, expected in case.values]
            array = pa.array(values + [None] * (ROWS - len(values)), part.written)
            columns[f"c{number}{part.suffix}"] = array
    return columns


@pytest.fixture
def with_times(spark: SparkSession) -> Iterator[SparkSession]:
    """Let the session read times of the day, for one test."""
    spark.conf.set(TIMES, "true")
    yield spark
    spark.conf.unset(TIMES)


def test_spark_reads_each_value_as_it_was(with_times: SparkSession, tmp_path: Path) -> None:
    """At the limits of every type, years 1 and 9999 and 38 digits among them; instants by their numbers."""
    columns = _columns()
    if not HAS_TIME_TYPE:
        columns = {name: array for name, array in columns.items() if not pa.types.is_time(array.type)}
    pq.write_table(pa.table(columns), tmp_path / "all.parquet", version="2.6")
    schema = ", ".join(f"{name} {spark_type(name, array.type)}" for name, array in columns.items())
    # As read_export does.
    reader = with_times.read.schema(schema).option("datetimeRebaseMode", "CORRECTED")
    frame = reader.parquet(str(tmp_path / "all.parquet"))
    # Python has no instant of its own for year 1 in zones west of Greenwich.
    instants = {name for name, array in columns.items() if "tz=" in str(array.type)}
    chosen = [f"unix_micros({name}) as {name}" if name in instants else name for name in columns]
    rows = [row.asDict() for row in frame.selectExpr(*chosen).collect()]
    for name, array in columns.items():
        expected = array.cast(pa.int64()) if name in instants else array
        assert [_plain(row[name]) for row in rows] == expected.to_pylist(), name


def _plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def test_times_of_the_day_are_refused_where_spark_would_not_read_them(spark: SparkSession) -> None:
    """With the columns, and the setting or the version; not with Spark's own error for the whole file."""
    kinds = {"At": pa.timestamp("us"), "Opens": pa.time64("us")}
    remedy = TIMES if HAS_TIME_TYPE else f"from 4.1 on, but this is {spark.version}"
    with pytest.raises(ColumnTypeError, match=f"'Opens'.*{remedy}"):
        check_times(spark, kinds)
    check_times(spark, {"At": pa.timestamp("us"), "n": pa.int32()})


def test_the_first_six_digits_sort_and_filter_as_before(spark: SparkSession, tmp_path: Path) -> None:
    """A frame of a ``datetime2(7)`` is used as one of a ``datetime2(6)``."""
    at = [datetime(2026, 1, 1, 0, 0, 0, 5), datetime(2026, 1, 1, 0, 0, 0, 6)]
    table = pa.table({"At": pa.array(at, pa.timestamp("us")), "At_100ns": pa.array([9, 0], pa.uint8())})
    pq.write_table(table, tmp_path / "at.parquet")
    frame = spark.read.parquet(str(tmp_path / "at.parquet"))
    found = frame.where("At < timestamp_ntz'2026-01-01 00:00:00.000006'").collect()
    assert [(row["At"], row["At_100ns"]) for row in found] == [(at[0], 9)]
