# SPDX-License-Identifier: Apache-2.0
"""Small tasks of many feeds in few jobs: each gets its own rows or error, whatever becomes of the others."""

from __future__ import annotations

import json
import pickle
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.spark.executors import opened
from airflow_changefeed.spark.joined_jobs import AT_ONCE, JoinedJobs, JoinedTasks


@dataclass(frozen=True)
class Task:
    """A function of one task; it says its name, or fails."""

    name: str
    fails: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self.fails:
                raise RuntimeError(f"{self.name} cannot be written")
            yield pa.RecordBatch.from_pydict(
                {"facts": [f"{self.name}:{n}" for n in batch.column(0).to_pylist()]}
            )


class Spark:
    """Jobs in threads of this process; a function goes pickled to its task."""

    def __init__(self, *, loses: type[Any] | None = None) -> None:
        self.pool = ThreadPoolExecutor(8)
        self.jobs: list[Any] = []
        self.gate = threading.Event()
        self.most = self.running = 0
        self.loses = loses
        self.lock = threading.Lock()

    def submit(self, function: Any, numbers: range) -> Future[list[Any]]:
        """Start a job."""
        self.jobs.append(function)
        return self.pool.submit(self._run, pickle.dumps(function), numbers)

    def _run(self, function: bytes, numbers: range) -> list[Any]:
        self.gate.wait(10)
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        try:
            task = pickle.loads(function)  # noqa: S301 - our own bytes
            if self.loses is not None and isinstance(task, self.loses):
                raise RuntimeError("the executor is gone")
            rows = []
            for number in numbers:
                batch = pa.RecordBatch.from_pydict({"id": [number]})
                rows += [row for found in task(iter([batch])) for row in found.to_pylist()]
            return rows
        finally:
            with self.lock:
                self.running -= 1

    @property
    def joined(self) -> list[Any]:
        """The jobs that were joined."""
        return [job for job in self.jobs if isinstance(job, JoinedTasks)]


@dataclass(frozen=True)
class Opens:
    """A function that opens a database, and says of its source which one it is."""

    connection: JobConnection
    database: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            with opened(self.connection, "shop.Order", self.database) as source:
                yield pa.RecordBatch.from_pydict({"facts": [f"{id(source)} {source.bulk_reader}"]})


def facts(future: Future[list[Any]]) -> list[str]:
    """The rows of one task."""
    return [row["facts"] for row in future.result(10)]


def test_small_tasks_of_a_database_share_a_source(tmp_path: Path) -> None:
    """With its connection, for the time of one task of Spark; each is checked to be the planned database."""
    sources = [SqliteFeedSource(str(tmp_path / f"{name}.db")) for name in "ab"]
    for source in sources:
        with closing(sqlite3.connect(source.database.path)) as connection:
            connection.execute('create table "shop.Order" (id integer primary key)')
        source.set_up_feed("shop.Order")
    a, b = [Opens(JobConnection(source.describe()), source.identity().id) for source in sources]
    batch = pa.RecordBatch.from_pydict({"id": [0]})
    functions = (a, b, a, Opens(a.connection, b.database), b)
    job = JoinedTasks({0: [(place, function, 0) for place, function in enumerate(functions)]})
    found = [json.loads(row["facts"]) for rows in job(iter([batch])) for row in rows.to_pylist()]
    said = [one.get("rows", one.get("error")) for one in found]
    assert said[0] == said[2] != said[1] == said[4]
    assert said[0][0].endswith("sqlite3")
    assert "planned for database" in said[3]
    ((alone,),) = [rows.to_pydict()["facts"] for rows in a(iter([batch]))]
    assert alone.endswith("adbc")


def test_each_task_gets_its_own_rows() -> None:
    """And what waits while a job runs is one job afterwards."""
    spark = Spark()
    join = JoinedJobs(spark.submit)
    futures = [join(Task(f"feed{number}"), range(number, number + 1)) for number in range(50)]
    spark.gate.set()
    assert [facts(each) for each in futures] == [[f"feed{number}:{number}"] for number in range(50)]
    assert len(spark.jobs) == len(spark.joined) == AT_ONCE + 1
    assert spark.most <= AT_ONCE


def test_a_task_that_fails_hides_no_other_and_is_tried_alone() -> None:
    """Its job of its own has the error that counts."""
    spark = Spark()
    join = JoinedJobs(spark.submit)
    spark.gate.set()
    futures = [join(Task(f"feed{number}", fails=number == 3), range(1)) for number in range(9)]
    for number, future in enumerate(futures):
        if number == 3:
            with pytest.raises(RuntimeError, match="feed3 cannot be written"):
                future.result(10)
        else:
            assert facts(future) == [f"feed{number}:0"]
    assert [job for job in spark.jobs if not isinstance(job, JoinedTasks)] == [Task("feed3", fails=True)]


def test_tasks_of_a_job_that_is_lost_are_run_one_by_one() -> None:
    """As if they had never been joined."""
    spark = Spark(loses=JoinedTasks)
    join = JoinedJobs(spark.submit)
    futures = [join(Task(f"feed{number}"), range(1)) for number in range(5)]
    spark.gate.set()
    assert [facts(each) for each in futures] == [[f"feed{number}:0"] for number in range(5)]


def test_a_list_that_is_given_up_leaves_nobody_waiting() -> None:
    """Where no job can be started any more, each one who waits gets an error."""
    spark = Spark(loses=JoinedTasks)
    join = JoinedJobs(spark.submit)
    future = join(Task("feed"), range(1))
    spark.pool.shutdown(wait=False)
    spark.gate.set()
    with pytest.raises(RuntimeError, match="cannot schedule new futures"):
        future.result(10)


def test_tasks_show_nothing_of_what_they_carry() -> None:
    """A connection may have a password."""
    assert "hunter2" not in repr(JoinedTasks({0: [(0, Task("hunter2"), 0)]}))
