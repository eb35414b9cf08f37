# SPDX-License-Identifier: Apache-2.0
"""What a worker of Spark keeps of a database that it has read."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.sources.sqlite.connection import _KEPT
from airflow_changefeed.spark.executors import opened
from airflow_changefeed.spark.joined_jobs import JoinedTasks
from tests.unit.export.flights import FEED, Flights


@pytest.fixture
def flights(tmp_path: Path) -> Flights:
    """A feed with events in two shards."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(30, 0, shard=1, length=3)
    flights.add(6, 1, shard=2)
    return flights


@dataclass(frozen=True)
class Reads:
    """A function that reads a feed; it fails in the middle where it is told to, and leaves a cycle."""

    connection: JobConnection
    database: str
    fails: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            with opened(self.connection, FEED, self.database) as source:
                rows = source.stream(FEED, 1, UlidRange(Ulid.MIN, Ulid.floor(source.now())), batch_rows=4)
                first = next(rows)
                if self.fails:
                    error = RuntimeError("the disk is full")
                    error.rows = (rows, error)  # type: ignore[attr-defined]
                    raise error
                count = first.num_rows + sum(each.num_rows for each in rows)
            yield pa.RecordBatch.from_pydict({"facts": [f"{count}"]})


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_function_that_fails_half_way_leaves_no_closed_connection_behind(flights: Flights) -> None:
    """
    The others go on; and what the garbage collector ends later is not kept for another database.

    The kept connections are by the id of a database, which another one may get in a reused worker.
    """
    flights.source.seal(FEED, flights.source.now())
    connection, database = JobConnection(flights.source.describe()), flights.source.identity().id
    gc.disable()
    try:
        functions = (Reads(connection, database, fails=True), Reads(connection, database))
        job = JoinedTasks({0: [(place, one, 0) for place, one in enumerate(functions)]})
        batch = pa.RecordBatch.from_pydict({"id": [0]})
        found = [json.loads(row["facts"]) for rows in job(iter([batch])) for row in rows.to_pylist()]
        assert "the disk is full" in found[0]["error"]
        assert found[1]["rows"] == ["30"]
        gc.collect()
    finally:
        gc.enable()
    assert _KEPT.connections == {}
