# SPDX-License-Identifier: Apache-2.0
"""The job that reads a table's ranges on Spark, and folds that start from what it has read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import SnapshotError, TransientError
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.fold_plan import FoldTask
from airflow_changefeed.lake.snapshot_ranges import RangesToRead
from airflow_changefeed.lake.snapshots import Snapshot, SnapshotFiles
from airflow_changefeed.lake.states import new_attempt
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.spark.fold import fold, run_fold
from airflow_changefeed.spark.snapshot_job import run_ranges
from tests.integration.spark.jobs import run_job
from tests.unit.lake.stock import CAPTURE, TABLE, Stock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def stock(tmp_path: Path) -> Stock:
    """A table of a hundred rows."""
    return Stock.create(tmp_path)


def take(spark: SparkSession, stock: Stock, then: Callable[[], object] = lambda: None) -> Snapshot:
    """Take a snapshot on Spark, and do something between its reading and its end."""

    def read(files: SnapshotFiles, wanted: RangesToRead) -> None:
        run_ranges(lambda: spark, wanted, JobConnection(stock.source.describe()), lambda line: None)
        then()

    request = SnapshotRequest(CAPTURE, None, stock.lake, "tests/run", range_rows=30, tasks=2)
    return take_snapshot(stock.source, request, None, read, lambda line: None)


def folded(spark: SparkSession, stock: Stock, at: Any) -> list[dict[str, Any]]:
    """Fold at a time from the newest base."""
    frame = fold(spark, stock.export, CAPTURE, at=at, states=stock.lake)
    return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["id"])


def test_folds_start_from_what_spark_has_read(spark: SparkSession, stock: Stock) -> None:
    """At the time from which it is exact, and later; the first state from it is the base of the next one."""

    def change() -> None:
        stock.change(
            "update stock set name = 'new' where id < 50",
            "delete from stock where id = 7",
            "update stock set id = 700 where id = 70",
            "insert into stock values (1000, null, null)",
        )

    taken = take(spark, stock, change)
    assert (taken.rows, len(taken.files)) == (100, 4)
    expected = stock.rows()
    stock.change("update stock set amount = 0.5 where id = 3")
    window = stock.export_all()
    assert folded(spark, stock, taken.exact_from) == expected
    assert folded(spark, stock, window.end) == stock.rows()
    said: list[str] = []
    task = FoldTask(CAPTURE, stock.export, stock.lake, window.end, None, new_attempt(), "tests/run")
    state = run_fold(lambda: spark, task, JobConnection({}), said.append)
    assert state.rows == 100
    assert said[0].endswith(f"events since the snapshot of {format_time(taken.begin)}")
    frame = spark.read.parquet(state.path)
    assert {(row["id"] % 3, row["changefeed_shard"]) for row in frame.collect()} == {(0, 0), (1, 1), (2, 2)}


@pytest.mark.ci
def test_an_error_of_a_task_is_ours(spark: SparkSession, stock: Stock) -> None:
    """By its name, as if it was raised here; what was read before stays."""
    stock.change("update stock set name = x'00' where id = 100")
    with pytest.raises(Exception, match="'name', declared 'TEXT', cannot be exported unchanged as string"):
        take(spark, stock)
    (claim,) = stock.source.snapshots()
    files = SnapshotFiles(stock.lake, CAPTURE, TABLE)
    assert len(files.ranges(claim.token)) >= 1
    stock.change("update stock set name = 'right' where id = 100")
    taken = take(spark, stock)
    assert (taken.token, taken.rows) == (claim.token, 100)


@pytest.mark.ci
def test_one_that_was_given_up_ends_its_tasks(spark: SparkSession, stock: Stock) -> None:
    """The error says so."""
    wanted: list[RangesToRead] = []

    def note(files: SnapshotFiles, given: RangesToRead) -> None:
        wanted.append(given)
        raise TransientError("not now")

    request = SnapshotRequest(CAPTURE, None, stock.lake, "tests/run", range_rows=30)
    with pytest.raises(TransientError, match="not now"):
        take_snapshot(stock.source, request, None, note, lambda line: None)
    stock.source.end_snapshot(CAPTURE, TABLE, token=wanted[0].token)
    with pytest.raises(SnapshotError, match="was given up"):
        run_ranges(lambda: spark, wanted[0], JobConnection(stock.source.describe()), lambda line: None)


@pytest.mark.ci
def test_the_jobs_result_says_why_it_ended(
    spark: SparkSession, stock: Stock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And its exit status whether it has read all."""
    taken = take(spark, stock)
    files = SnapshotFiles(stock.lake, CAPTURE, TABLE)
    begun = files.begun(taken.token)
    assert begun is not None
    wanted = RangesToRead(CAPTURE, TABLE, stock.lake, taken.token, begun.database, (0,), begun.ranges[:1], 1)
    for name, given, error in (("all", wanted, ""), ("lost", replace(wanted, numbers=(9,)), "was given up")):
        status, result = run_job(tmp_path / name, given.to_json(), JobConnection(stock.source.describe()))
        assert status == (1 if error else 0)
        assert error in (result.error or "")
        assert bool(result.error) == bool(error)
    assert "was given up" in capsys.readouterr().out
