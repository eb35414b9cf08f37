# SPDX-License-Identifier: Apache-2.0
"""
Reads ranges of a snapshot on Spark.

What was read is in the output; a job only says why it ended early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from airflow_changefeed.exceptions import error_text, own_error
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.snapshot_ranges import RangesToRead, read_ranges
from airflow_changefeed.lake.snapshots import SnapshotFiles
from airflow_changefeed.spark.executors import opened

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


@dataclass(frozen=True)
class ReadRanges:
    """The function of the tasks that read ranges, each its part; a range counts as soon as it is read."""

    wanted: RangesToRead
    connection: JobConnection = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Read the ranges of the tasks whose numbers come in, and yield nothing."""
        wanted = self.wanted
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    options = self.connection.storage_options
                    files = SnapshotFiles(
                        wanted.path, wanted.feed, wanted.table, options, database=wanted.database
                    )
                    with opened(self.connection, wanted.feed, wanted.database) as source:
                        read_ranges(source, files, wanted, wanted.of_task(number))
                except Exception as error:
                    raise RuntimeError(error_text(error)) from error
        # Spark runs a generator only.
        yield from ()
