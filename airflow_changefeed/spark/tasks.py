# SPDX-License-Identifier: Apache-2.0
"""What runs on Spark's executors: a task opens the source once, writes its parts and says what it wrote."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_changefeed.core.plan import ExportOptions
from airflow_changefeed.exceptions import error_text
from airflow_changefeed.export.job_connection import JobConnection
from airflow_changefeed.export.parts import PlannedPart, task_name, write_parts
from airflow_changefeed.folding.snapshots import SnapshotFiles
from airflow_changefeed.output.ownership import check_database
from airflow_changefeed.snapshots.ranges import RangesToRead, read_ranges
from airflow_changefeed.sources.arrow import byte_strings
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.storage.files import open_files

#: Options of a source that reads in a process of its own, by its type.
BULK = {"sqlite": {"bulk_reader": "adbc"}}
#: Columns of what tasks yield: a row for each task, with its number and what it says, as JSON.
FACTS_SCHEMA = "facts string"


@dataclass(frozen=True)
class WriteParts:
    """
    The function that Spark's tasks run; it carries all they need, so that nothing stands in the plan or in
    settings.

    :param tasks: number of a task to its parts, as :func:`packed` makes them.
    :param database: identity of that which was planned for; the connection leads here, too.
    """

    feed: str
    path: str
    attempt: int
    options: ExportOptions
    connection: JobConnection = field(repr=False)
    tasks: Mapping[int, bytes] = field(repr=False)
    database: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the parts of the tasks whose numbers come in, and yield facts."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    yield _facts(number, list(self._run(number)))
                except Exception as error:
                    # Spark hands on nothing of an exception but its text.
                    raise RuntimeError(error_text(error)) from error

    def _run(self, number: int) -> Iterator[dict[str, Any]]:
        with opened(self.connection, self.feed, self.database) as source:
            yield from write_parts(
                source,
                open_files(self.path, self.connection.storage_options),
                feed=self.feed,
                attempt=self.attempt,
                options=self.options,
                task=task_name(number, _task_attempt()),
                parts=json.loads(zlib.decompress(self.tasks[number])),
            )


@dataclass(frozen=True)
class ReadRanges:
    """
    The function of the tasks that read ranges of a snapshot; each range counts as soon as it is read.

    :param wanted: what all tasks read; a task takes its part by its number.
    """

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


@contextmanager
def opened(connection: JobConnection, feed: str, database: str) -> Iterator[FeedSource]:
    """
    Open the source of a connection in a task.

    :raises ConnectionNotUsableError: it leads to another database than the one planned for.
    """
    from airflow_changefeed.sources import open_source

    # Spark gives a worker process one task at a time, so nobody else here has the source open.
    bulk = BULK.get(connection.source["type"], {})
    with closing(open_source(connection.source, **bulk)) as source:
        check_database(source, feed, database)
        yield source


def packed(task: Sequence[PlannedPart]) -> bytes:
    """Write a task's parts as compressed JSON."""
    return zlib.compress(json.dumps([part.content for part in task]).encode())


def _facts(number: int, facts: list[dict[str, Any]]) -> pa.RecordBatch:
    text = byte_strings([json.dumps({"task": number, "facts": facts})], pa.string())
    return pa.RecordBatch.from_arrays([text], names=["facts"])


def _task_attempt() -> int:
    """Return a number that no other attempt at any task of this Spark application has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.taskAttemptId() if context is not None else 0
