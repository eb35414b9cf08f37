# SPDX-License-Identifier: Apache-2.0
"""What runs on Spark's executors: a task opens the source once, writes its parts and says what it wrote."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from airflow_changefeed.core.feed import parse_shard, shard_text
from airflow_changefeed.core.plan import ExportOptions, Plan
from airflow_changefeed.core.unit import range_from, range_to
from airflow_changefeed.export.commit import StagedFile
from airflow_changefeed.export.connection import JobConnection
from airflow_changefeed.export.files import open_files
from airflow_changefeed.export.layout import Layout, unit_key
from airflow_changefeed.export.range_writer import write_part
from airflow_changefeed.export.result import ErrorFacts
from airflow_changefeed.spark.progress import TaskProgress

#: Columns of what tasks yield: one JSON document for each file, and one for the schema that was written.
FACTS_SCHEMA = "facts string"
_TASKS_PER_CORE = 3
# A part costs about as much as so many rows besides its own.
_PART_COST_ROWS = 500


@dataclass(frozen=True)
class PartTask:
    """
    A part of a unit.

    :param unit: number of the unit in the plan, from 0.
    :param part: number of the range in the unit, from 0.
    :param cost: estimated rows, with what a part costs besides them.
    """

    unit: int
    part: int
    cost: int
    content: dict[str, Any]


def group(plan: Plan, cores: int) -> list[bytes]:
    """
    Cut a plan into tasks: a few for each core, of about the same cost, the parts of a shard in their order.

    :param cores: tasks that Spark runs at the same time.
    :return: a compressed JSON description for each task.
    """
    parts = _parts(plan)
    # A task that holds a large part alone ends late, so tasks are cut by the mean, never in the middle of a
    # part.
    aim = max(1, -(-sum(part.cost for part in parts) // max(1, cores * _TASKS_PER_CORE)))
    groups: list[list[PartTask]] = []
    cost = 0
    for part in parts:
        if not groups or cost + part.cost / 2 > aim:
            groups.append([])
            cost = 0
        groups[-1].append(part)
        cost += part.cost
    return [zlib.compress(json.dumps([part.content for part in each]).encode()) for each in groups]


def _parts(plan: Plan) -> list[PartTask]:
    parts = []
    for number, planned in enumerate(plan.units):
        for part, range_ in enumerate(planned.parts):
            content = {
                "unit": number,
                "part": part,
                "shard": shard_text(planned.unit.shard),
                "folder": unit_key(planned.unit),
                **range_to(range_),
            }
            parts.append(
                PartTask(number, part, planned.rows // len(planned.parts) + _PART_COST_ROWS, content)
            )
    return parts


@dataclass(frozen=True)
class WriteParts:
    """
    The function that Spark's tasks run; it carries all they need, so that nothing stands in the plan or in
    settings.

    :param tasks: as :func:`group` makes them.
    """

    feed: str
    path: str
    attempt: int
    options: ExportOptions
    connection: JobConnection = field(repr=False)
    tasks: Sequence[bytes] = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the parts of the tasks whose numbers come in, and yield facts."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    yield _facts(list(self._run(number)))
                except Exception as error:
                    # Spark hands on nothing of an exception but its text.
                    raise RuntimeError(ErrorFacts.of(error).marked) from error

    def _run(self, number: int) -> Iterator[dict[str, Any]]:
        from airflow_changefeed.sources import open_source

        files = open_files(self.path, self.connection.storage_options)
        layout = Layout(files.root, self.feed)
        task = f"{number:05d}-{_task_attempt()}"
        home = f"{layout.writing(self.attempt)}/{task}"
        # Spark gives a worker process one task at a time, so nobody else here has the source open.
        source = open_source(self.connection.source, **_bulk(self.connection))
        progress = TaskProgress(files, f"{home}/progress.json")
        schema = source.schema(self.feed)
        try:
            yield {"schema": {column.name: str(column.type) for column in schema}}
            for part in json.loads(zlib.decompress(self.tasks[number])):
                shard = part["shard"]
                for facts in write_part(
                    source,
                    files,
                    f"{home}/{part['folder']}",
                    schema=schema,
                    feed=self.feed,
                    shard=parse_shard(shard),
                    range_=range_from(part),
                    part=part["part"],
                    options=self.options,
                    progress=partial(progress.add, shard),
                ):
                    path = f"writing/{task}/{part['folder']}/{facts.name}"
                    yield StagedFile(part["unit"], path, facts).to_dict()
            progress.write()
        finally:
            source.close()


def _bulk(connection: JobConnection) -> dict[str, str]:
    return {"bulk_reader": "adbc"} if connection.source.get("type") == "sqlite" else {}


def _facts(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"facts": pa.array([json.dumps(row) for row in rows], pa.string())})


def _task_attempt() -> int:
    """Return a number that no other attempt at any task of this Spark application has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.taskAttemptId() if context is not None else 0
