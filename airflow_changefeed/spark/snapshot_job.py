# SPDX-License-Identifier: Apache-2.0
"""
Reads ranges of a snapshot on Spark.

What was read is in the output; a job only says why it ended early.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import wait
from typing import TYPE_CHECKING

from airflow_changefeed.exceptions import own_error
from airflow_changefeed.export.job_connection import JobConnection
from airflow_changefeed.folding.snapshots import SnapshotFiles
from airflow_changefeed.snapshots.ranges import RangesToRead
from airflow_changefeed.spark.tasks import ReadRanges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds between two lines of progress.
_PROGRESS = 30.0


def run_ranges(
    spark: Callable[[], SparkSession],
    wanted: RangesToRead,
    connection: JobConnection,
    report: Callable[[str], None],
) -> None:
    """Read ranges in tasks of Spark."""
    from airflow_changefeed.spark.version_compat import cancellable_jobs

    files = SnapshotFiles(wanted.path, wanted.feed, wanted.table, connection.storage_options)
    try:
        with cancellable_jobs(spark(), 1) as submit:
            job = submit(ReadRanges(wanted, connection), range(wanted.tasks))
            while wait([job], _PROGRESS).not_done:
                done = files.numbers(wanted.token).intersection(wanted.numbers)
                report(f"changefeed snapshot: {len(done)} of {len(wanted.numbers)} ranges read")
            job.result()
    except Exception as error:
        raise own_error(error) from error
