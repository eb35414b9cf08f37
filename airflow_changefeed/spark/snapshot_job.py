# SPDX-License-Identifier: Apache-2.0
"""
Reads ranges of a snapshot on Spark.

What was read is in the output; a job only says why it ended early.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

from airflow_changefeed.exceptions import own_error
from airflow_changefeed.export.job_connection import JobConnection
from airflow_changefeed.folding.snapshots import SnapshotFiles
from airflow_changefeed.snapshots.ranges import RangesToRead
from airflow_changefeed.spark.tasks import FACTS_SCHEMA, ReadRanges

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
    """
    Read ranges in tasks of Spark.

    :param spark: makes or gives the session.
    :param report: takes one line of progress.
    :raises ChangefeedError: ours, also when it was raised in a task.
    """
    from airflow_changefeed.spark.version_compat import cancel_jobs, job_tags, tag_jobs

    running = spark()
    tag = f"changefeed-{uuid.uuid4().hex}"
    tags = [tag, *job_tags(running)]

    def run() -> None:
        tag_jobs(running, tags)
        frame = running.range(0, wanted.tasks, 1, wanted.tasks)
        frame.mapInArrow(ReadRanges(wanted, connection), FACTS_SCHEMA).collect()

    files = SnapshotFiles(wanted.path, wanted.feed, wanted.table, connection.storage_options)
    pool = ThreadPoolExecutor(1, thread_name_prefix="changefeed-snapshot")
    try:
        job = pool.submit(run)
        while wait([job], _PROGRESS).not_done:
            done = files.numbers(wanted.token).intersection(wanted.numbers)
            report(f"changefeed snapshot: {len(done)} of {len(wanted.numbers)} ranges read")
        job.result()
    except BaseException as error:
        # Where that fails as well, the error is what counts.
        with contextlib.suppress(Exception):
            cancel_jobs(running, tag)
        if isinstance(error, Exception):
            raise own_error(error) from error
        raise
    finally:
        pool.shutdown(cancel_futures=True)
