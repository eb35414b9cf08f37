# SPDX-License-Identifier: Apache-2.0
"""A small feed on the embedded source, and exports of it without Spark."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_changefeed.core.completeness import Evidence
from airflow_changefeed.core.cursor import Frontier
from airflow_changefeed.core.export_plan import ExportOptions, Manifest, Plan
from airflow_changefeed.core.fault import Fault
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import Window
from airflow_changefeed.doctor.output import output_faults
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.export.parts import cut_tasks, gather
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.attempts import begin, end, forget
from airflow_changefeed.output.commit import Commit
from airflow_changefeed.output.store import ExportStore, WrittenParts
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_consumers import CursorMove
from airflow_changefeed.spark.export_job import WriteParts, packed
from tests.identity import name_database
from tests.templates import content_of

FEED = "nyc.Flight"
START = datetime(2013, 1, 1, tzinfo=timezone.utc)
CONSUMER = "tests"
_runs = count(1)


def hours(first: int, last: int) -> list[Window]:
    """Hourly windows of the first days of 2013: from hour ``first`` (inclusive) to ``last`` (exclusive)."""
    return [
        Window(START + timedelta(hours=hour), START + timedelta(hours=hour + 1))
        for hour in range(first, last)
    ]


def _make_empty(path: Path) -> None:
    """Make the table of flights, and its feed."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            f'create table "{FEED}" (id integer primary key, origin text, tail text, delay real, raw blob)'
        )
    with closing(open_source({"type": "sqlite", "path": str(path)})) as source:
        source.set_up_feed(FEED)
    name_database(path)


@dataclass
class Flights:
    """
    A feed over a table of flights in one SQLite file.

    :param storage_options: with which tasks write.
    """

    path: Path
    source: FeedSource
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def create(cls, path: Path) -> Flights:
        """Make the table and the feed; both are empty."""
        path.write_bytes(content_of(_make_empty))
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Flights:
        """Take a file in which the feed is."""
        return cls(path, open_source({"type": "sqlite", "path": str(path), "lock_timeout": 10.0}))

    @classmethod
    def copy(cls, made: Path, folder: Path) -> Flights:
        """Copy a folder in which a feed was made, ``feeds.db``, and all else that is there."""
        shutil.copytree(made, folder, dirs_exist_ok=True)
        return cls.open(folder / "feeds.db")

    def execute(self, statement: str, *parameters: object) -> None:
        """Run one statement as a writer would."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute(statement, parameters)

    def add(self, rows: int, hour: int, shard: int = 0, *, length: int = 1) -> None:
        """Add events spread over ``length`` hours from an hour on."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute("begin immediate")
            (first,) = connection.execute(f'select coalesce(max(id), 0) + 1 from "{FEED}"').fetchone()
            start = int((START + timedelta(hours=hour)).timestamp() * 1000)
            ids = range(first, first + rows)
            connection.executemany(
                f'insert into "{FEED}" values (?, ?, ?, ?, ?)',
                [(i, "JFK", None if i % 7 == 0 else f"N{i % 50:05d}", i / 4, b"\x00" * (i % 5)) for i in ids],
            )
            connection.executemany(
                f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (?, ?, ?)',
                [(shard, start + (i - first) * 3_600_000 * length // rows, i) for i in ids],
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
        run: str | None = None,
        unit: timedelta | None = None,
    ) -> Plan:
        """
        Plan an export.

        :param run: None for a task of its own; two runs of a task differ in what follows the last ``/``.
        """
        request = ExportRequest(
            FEED,
            store.path,
            CONSUMER,
            run or f"tests{next(_runs)}/1",
            windows,
            shards,
            options or ExportOptions(),
            unit,
        )
        return make_plan(self.source, store, request)

    def write(self, store: ExportStore, plan: Plan) -> Iterator[WrittenParts]:
        """Run a plan's tasks in this process, as Spark would in others."""
        tasks = cut_tasks(plan)
        # bulk_reader is set by the tasks for a process of their own; here sqlite3 is open, too, but never
        # meanwhile.
        write = WriteParts(
            plan.feed,
            store.path,
            plan.attempt,
            plan.options,
            JobConnection(self.source.describe(), self.storage_options),
            {number: packed(task) for number, task in enumerate(tasks)},
            plan.database,
        )
        for batch in write(_numbers(len(tasks))):
            for text in batch.column(0).to_pylist():
                value = json.loads(text)
                yield gather(value["facts"], tasks[value["task"]])

    def commit(self, store: ExportStore, plan: Plan) -> list[Manifest]:
        """Write and commit a plan that was begun."""
        commit = Commit(store, plan)
        for written in self.write(store, plan):
            commit.add(written)
        return commit.finish()

    def move(self, ends: Mapping[Shard, Ulid]) -> None:
        """Let the consumer's cursors stand at the end of what is complete."""
        rows = {row.shard: row for row in self.source.cursors(FEED, CONSUMER)}
        tokens = self.source.acquire_leases(
            CONSUMER, FEED, list(ends), holder="test", seconds=60, all_or_none=True
        ).tokens
        moves = [
            CursorMove(
                shard, Frontier(rows[shard].frontier.start, end), rows[shard].resource_version, tokens[shard]
            )
            for shard, end in ends.items()
        ]
        self.source.move_cursors(CONSUMER, FEED, moves, by="test")

    def run(self, store: ExportStore, plan: Plan) -> list[Manifest]:
        """Run a plan as a task does that finishes, without Spark."""
        begin(store, plan)
        manifests = self.commit(store, plan)
        end(store, plan, committed=True)
        forget(store, [plan.attempt])
        return manifests

    def export(
        self, store: ExportStore, windows: Sequence[Window] | None, **options: object
    ) -> list[Manifest]:
        """Export without Spark."""
        return self.run(store, self.plan(store, windows, options=ExportOptions(**options)))


def found_faults(store: ExportStore, database: str) -> list[Fault]:
    """Return what is wrong with an output in itself: nothing is known of its feed or consumers."""
    return output_faults(store, database, Evidence(()), [], [], set(), {}, lambda consumer, missing: None)


def _numbers(count: int) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"id": pa.array(range(count), pa.int64())})
