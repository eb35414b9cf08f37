# SPDX-License-Identifier: Apache-2.0
"""What runs on Spark's executors: a task opens the source once, writes its parts and says what it wrote."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_changefeed.core.plan import ExportOptions, Plan
from airflow_changefeed.exceptions import ConnectionNotUsableError, error_text
from airflow_changefeed.export.job_connection import JobConnection
from airflow_changefeed.export.parts import PlannedPart, plan_parts, task_name, write_parts
from airflow_changefeed.sources.arrow import byte_strings
from airflow_changefeed.storage.files import open_files

#: Columns of what tasks yield: one JSON document for each file, and one for the schema that was written.
FACTS_SCHEMA = "facts string"
_TASKS_PER_CORE = 3
# A part costs as much as this many rows, besides its own.
_PART_COST_ROWS = 500


def group(plan: Plan, cores: int) -> list[bytes]:
    """
    Cut a plan into tasks: a few for each core, of about the same cost, the parts of a shard in their order.

    :param cores: tasks that Spark runs at the same time.
    :return: a compressed JSON description for each task.
    """
    parts = plan_parts(plan)
    # A task that holds a large part alone ends late, so tasks are cut by the mean, never in the middle of a
    # part.
    costs = [part.rows + _PART_COST_ROWS for part in parts]
    aim = max(1, -(-sum(costs) // max(1, cores * _TASKS_PER_CORE)))
    groups: list[list[PlannedPart]] = []
    so_far = 0
    for part, cost in zip(parts, costs, strict=True):
        if not groups or so_far + cost / 2 > aim:
            groups.append([])
            so_far = 0
        groups[-1].append(part)
        so_far += cost
    return [zlib.compress(json.dumps([part.content for part in each]).encode()) for each in groups]


@dataclass(frozen=True)
class WriteParts:
    """
    The function that Spark's tasks run; it carries all they need, so that nothing stands in the plan or in
    settings.

    :param tasks: as :func:`group` makes them.
    :param database: identity of that which was planned for; the connection leads here, too.
    """

    feed: str
    path: str
    attempt: int
    options: ExportOptions
    connection: JobConnection = field(repr=False)
    tasks: Sequence[bytes] = field(repr=False)
    database: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the parts of the tasks whose numbers come in, and yield facts."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    yield _facts(list(self._run(number)))
                except Exception as error:
                    # Spark hands on nothing of an exception but its text.
                    raise RuntimeError(error_text(error)) from error

    def _run(self, number: int) -> Iterator[dict[str, Any]]:
        from airflow_changefeed.sources import open_source

        files = open_files(self.path, self.connection.storage_options)
        bulk = {"bulk_reader": "adbc"} if self.connection.source.get("type") == "sqlite" else {}
        # Spark gives a worker process one task at a time, so nobody else here has the source open.
        source = open_source(self.connection.source, **bulk)
        try:
            if (found := source.identity().id) != self.database:
                raise ConnectionNotUsableError(
                    f"feed {self.feed!r}: the export was planned for database {self.database}, and here the "
                    f"connection leads to {found}: every machine must reach the same database",
                    feed=self.feed,
                )
            yield from write_parts(
                source,
                files,
                feed=self.feed,
                attempt=self.attempt,
                options=self.options,
                task=task_name(number, _task_attempt()),
                parts=json.loads(zlib.decompress(self.tasks[number])),
            )
        finally:
            source.close()


def _facts(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    facts = byte_strings([json.dumps(row) for row in rows], pa.string())
    return pa.RecordBatch.from_arrays([facts], names=["facts"])


def _task_attempt() -> int:
    """Return a number that no other attempt at any task of this Spark application has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.taskAttemptId() if context is not None else 0
