# SPDX-License-Identifier: Apache-2.0
"""
Folds an export, and reads and groups the same files plainly, in turn, in one session.

``python -m tests.benchmarks.fold_child ROUNDS DELETE_INSERT NEW_ONLY``, the exports of either key change.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_changefeed.spark.fold import fold
from tests.benchmarks.changes import CAPTURE
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


def main(rounds: str, delete_insert: str, new_only: str) -> None:
    """Warm up by a round that does not count, and measure."""
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
    with measured("rows") as result:
        result.update({way: make().count() for way, make in ways.items()})
    session.stop()


def _compute(frame: DataFrame) -> None:
    """Compute all columns of all rows, and keep none."""
    frame.write.format("noop").mode("overwrite").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
