# SPDX-License-Identifier: Apache-2.0
"""A small feed on the embedded source, and exports of it without Spark."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa

from airflow_changefeed.core.manifest import Manifest
from airflow_changefeed.core.plan import ExportOptions, Plan
from airflow_changefeed.core.window import Window
from airflow_changefeed.export.job_connection import JobConnection
from airflow_changefeed.export.parts import gather
from airflow_changefeed.export.planner import ExportRequest, make_plan
from airflow_changefeed.output.commit import begin, commit, end
from airflow_changefeed.output.store import ExportStore, StagedFile
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.spark.tasks import WriteParts, group
from tests.identity import name_database

FEED = "nyc.Flight"
START = datetime(2013, 1, 1, tzinfo=timezone.utc)
CONSUMER = "tests"


def hours(first: int, last: int) -> list[Window]:
    """Hourly windows of the first days of 2013: from hour ``first`` (inclusive) to ``last`` (exclusive)."""
    return [
        Window(START + timedelta(hours=hour), START + timedelta(hours=hour + 1))
        for hour in range(first, last)
    ]


@dataclass
class Flights:
    """A feed over a table of flights in one SQLite file."""

    path: Path
    source: FeedSource

    @classmethod
    def create(cls, path: Path) -> Flights:
        """Make the table and the feed; both are empty."""
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(
                f'create table "{FEED}" '
                "(id integer primary key, origin text, tail text, delay real, raw blob)"
            )
        source = open_source({"type": "sqlite", "path": str(path), "lock_timeout": 10.0})
        source.set_up_feed(FEED)
        name_database(path)
        return cls(path, source)

    def execute(self, statement: str, *parameters: object) -> None:
        """Run one statement as a writer would."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute(statement, parameters)

    def add(self, count: int, hour: int, shard: int = 0, *, length: int = 1) -> None:
        """Add events spread over ``length`` hours from an hour on."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            (first,) = connection.execute(f'select coalesce(max(id), 0) + 1 from "{FEED}"').fetchone()
            start = int((START + timedelta(hours=hour)).timestamp() * 1000)
            ids = range(first, first + count)
            connection.executemany(
                f'insert into "{FEED}" values (?, ?, ?, ?, ?)',
                [(i, "JFK", None if i % 7 == 0 else f"N{i % 50:05d}", i / 4, b"\x00" * (i % 5)) for i in ids],
            )
            connection.executemany(
                f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (?, ?, ?)',
                [(shard, start + (i - first) * 3_600_000 * length // count, i) for i in ids],
            )
            connection.execute("commit")

    def rows(self) -> int:
        """Return how many events were added."""
        with closing(sqlite3.connect(self.path)) as connection:
            return int(connection.execute(f'select count(*) from "{FEED}"').fetchone()[0])

    def plan(
        self,
        store: ExportStore,
        windows: Sequence[Window] | None,
        shards: Sequence[int] | None = None,
        options: ExportOptions | None = None,
    ) -> Plan:
        """Plan an export."""
        request = ExportRequest(
            FEED, store.path, CONSUMER, "tests/run", windows, shards, options or ExportOptions()
        )
        return make_plan(self.source, store, request)

    def write(self, store: ExportStore, plan: Plan) -> tuple[list[StagedFile], pa.Schema | None]:
        """Run a plan's tasks in this process, as Spark would in others."""
        tasks = group(plan, 1)
        # bulk_reader is set by the tasks for a process of their own; here sqlite3 is open, too, but never
        # meanwhile.
        write = WriteParts(
            plan.feed,
            store.path,
            plan.attempt,
            plan.options,
            JobConnection(self.source.describe()),
            tuple(tasks),
            plan.database,
        )
        rows = [
            json.loads(text) for batch in write(_numbers(len(tasks))) for text in batch.column(0).to_pylist()
        ]
        return gather(rows, FEED, len(tasks)) if tasks else ([], None)

    def export(
        self, store: ExportStore, windows: Sequence[Window] | None, **options: object
    ) -> list[Manifest]:
        """Export without Spark."""
        plan = self.plan(store, windows, options=ExportOptions(**options))
        begin(store, plan)
        manifests = commit(store, plan, *self.write(store, plan))
        end(store, plan, committed=True)
        return manifests


def _numbers(count: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"id": pa.array(range(count), pa.int64())})
