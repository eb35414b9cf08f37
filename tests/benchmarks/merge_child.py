# SPDX-License-Identifier: Apache-2.0
"""
Merges events into a current table, and copies its files plainly, in turn, in one session.

``python -m tests.benchmarks.merge_child ROUNDS EXPORT BEGIN END``: the table's frontier, and the time that is
merged.
"""

from __future__ import annotations

import shutil
import sys

from airflow_changefeed.core.values import parse_time
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.formats.base import CURRENT
from airflow_changefeed.formats.publish import open_table
from airflow_changefeed.lake.current import CurrentOutput
from airflow_changefeed.lake.merge import merge
from airflow_changefeed.lake.merge_task import MergeRequest, MergeResult
from airflow_changefeed.spark.merge import run_merge
from tests.benchmarks.changes import CAPTURE, TABLE
from tests.benchmarks.spark_ways import spark_session
from tests.benchmarks.watch import measured


def main(rounds: str, export: str, begin: str, end: str) -> None:
    """Warm up by rounds that do not count, and measure."""
    session = spark_session(is_javas_work=True)
    _merge(export, f"{export}-first", begin)
    first = CurrentOutput(f"{export}-first", CAPTURE, TABLE)
    there = {file.path for file in open_table("delta", first, use=CURRENT).look().plain}
    for number in range(-2, int(rounds)):
        with measured(f"copy {number}"):
            copy = session.read.parquet(*(f"{first.layout.data}/{path}" for path in there)).write
            copy.option("compression", "zstd").mode("overwrite").parquet(f"{export}-copy")
        lake = f"{export}-lake"
        shutil.rmtree(lake, ignore_errors=True)
        shutil.copytree(f"{export}-first", lake)
        with measured(f"merge {number}"):
            merged = _merge(export, lake, end)
    with measured("rows") as result:
        result.update({"merge": merged.rows, "kept": len(there) - merged.removed})
    session.stop()


def _merge(export: str, lake: str, at: str) -> MergeResult:
    """Merge as the operator does."""
    return merge(
        MergeRequest(CAPTURE, export, lake, parse_time(at), "benchmark"),
        None,
        lambda output: open_table("delta", output, use=CURRENT),
        lambda task: run_merge(spark_session, task, JobConnection({}), lambda line: None),
        lambda line: None,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
