# SPDX-License-Identifier: Apache-2.0
"""
Folds an export, and reads and groups the same files plainly, in turn, in one session; likewise a state.

``python -m tests.benchmarks.fold_child ROUNDS DELETE_INSERT NEW_ONLY LONG BASE END``: the exports of either
key change; one of many rows, the time of the state that a fold starts from, and the time that it folds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_changefeed.core.values import parse_time
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.fold_plan import FoldTask
from airflow_changefeed.lake.states import State, new_attempt
from airflow_changefeed.spark.fold import fold, run_fold
from tests.benchmarks.changes import CAPTURE, TABLE
from tests.benchmarks.spark_ways import spark_session
from tests.benchmarks.watch import measured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WAYS = ("plain", "fold", "lost")


def plain(path: str) -> DataFrame:
    """Read the files, and take of each key the row of its last event: what people write."""
    from pyspark.sql import functions

    files = sorted(str(file) for file in Path(path, CAPTURE).rglob("*.parquet"))
    last = functions.max_by("new", "changefeed_ulid").alias("row")
    return spark_session().read.parquet(*files).groupBy("new.id").agg(last).select("row.*")


def main(rounds: str, delete_insert: str, new_only: str, long: str, base: str, end: str) -> None:
    """Warm up by rounds that do not count, and measure."""
    ways: dict[str, Callable[[], DataFrame]] = {
        "plain": lambda: plain(delete_insert),
        "fold": lambda: fold(spark_session(), delete_insert, CAPTURE),
        "lost": lambda: fold(spark_session(), new_only, CAPTURE),
    }
    session = spark_session(is_javas_work=True)
    for number in range(-2, int(rounds)):
        for way, make in ways.items():
            if number < 0:
                _compute(make())
                continue
            with measured(f"{way} {number}"):
                _compute(make())
    state = _save(long, base)
    for number in range(-2, int(rounds)):
        with measured(f"copy {number}"):
            copy = session.read.parquet(state.path).write.option("compression", "zstd")
            copy.mode("overwrite").parquet(f"{long}-copy")
        with measured(f"base {number}"):
            folded = _save(long, end)
    with measured("rows") as result:
        result.update({way: make().count() for way, make in ways.items()})
        result["base"] = folded.rows
    session.stop()


def _save(path: str, at: str) -> State:
    """Write a state, from the newest one before it, as the operator's job does."""
    task = FoldTask(CAPTURE, path, f"{path}-states", parse_time(at), TABLE, new_attempt(), "benchmark")
    return run_fold(spark_session, task, JobConnection({}), lambda line: None)


def _compute(frame: DataFrame) -> None:
    """Compute all columns of all rows, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
