# SPDX-License-Identifier: Apache-2.0
"""An output that is a table, with attempts at it that stop at any step of files or of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_changefeed.core.export_plan import Plan
from airflow_changefeed.core.window import Window
from airflow_changefeed.formats.base import LakeTable, TableChange, TableState
from airflow_changefeed.formats.publish import differences, open_table, publish
from airflow_changefeed.output.attempts import begin, end, forget
from airflow_changefeed.output.commit import Commit
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.storage.files import Files
from tests.exports import verify
from tests.templates import content_of
from tests.unit.export.faults import local_files, manifest_rows, stepped
from tests.unit.export.flights import FEED, Flights
from tests.unit.formats.libraries import LIBRARIES, OPTIONS, FormatLibrary

Before = Callable[[int], None]
#: Events of the first hour of :func:`two_shards`.
ROWS = 12


def two_shards(database: Path) -> Flights:
    """Return twelve events of two shards in the first hour, none in the second, three in the third."""
    database.write_bytes(content_of(_make))
    return Flights.open(database)


def _make(path: Path) -> None:
    flights = Flights.create(path)
    flights.add(ROWS - 5, 0, shard=0)
    flights.add(5, 0, shard=1)
    flights.add(3, 2, shard=1)


class SteppedTable:
    """A table that calls somebody before and after each commit."""

    def __init__(self, table: LakeTable, before: Callable[[], None]) -> None:
        self._table = table
        self._before = before
        self.what = table.what
        self.check = table.check
        self.look = table.look
        self.unused = table.unused

    def commit(self, seen: TableState, change: TableChange) -> None:
        """Commit, with a step before it and one behind."""
        self._before()
        self._table.commit(seen, change)
        self._before()


@dataclass
class LakeAttempt:
    """An attempt at all units: planned, nothing written."""

    lake: Lake
    plan: Plan

    def write(self, files: Files | None = None) -> None:
        """Write and commit all files by manifests, as a job does."""
        store = self.lake.store_of(files or self.lake.files)
        commit = Commit(store, self.plan)
        for written in self.lake.flights.write(store, self.plan):
            commit.add(written)
        commit.finish()
        end(store, self.plan, committed=True)

    def publish(self, table: LakeTable | None = None, files: Files | None = None) -> bool:
        """Commit to the table, as the task does before its cursors move; then forget the attempt."""
        store = self.lake.store_of(files or self.lake.files)
        units = [planned.unit for planned in self.plan.units]
        is_changed = publish(store, table or self.lake.table(), units, self.plan.run)
        attempts = {self.plan.attempt, *(planned.committed_by for planned in self.plan.units)}
        forget(store, attempts - {0})
        return is_changed

    def run(self, before: Before | None = None, *, is_long: bool = True) -> None:
        """
        Do all of it; with somebody called before each change of files, and around each commit.

        :param is_long: whether also before those of the manifests, when nothing has changed the table yet.
        """
        if before is None:
            self.write()
            self.publish()
            return
        numbers = iter(range(1_000_000))

        def step(*_: int) -> None:
            before(next(numbers))

        files = stepped(self.lake.files, step)
        self.write(files if is_long else None)
        self.publish(SteppedTable(self.lake.table(), step), files)


class Lake:
    """
    An output of flights that is a table.

    :param kind: one of ``FORMATS``.
    """

    def __init__(self, folder: Path, kind: str, flights: Flights) -> None:
        self.folder = folder
        self.kind = kind
        self.flights = flights
        self.files = local_files(folder / "out")
        self.store = self.store_of(self.files)

    def store_of(self, files: Files) -> ExportStore:
        """Return the export on a file system."""
        return ExportStore(files.root, FEED, files=files)

    @property
    def library(self) -> FormatLibrary:
        """What other readers of the table use."""
        return LIBRARIES[self.kind](self.folder, self.store.layout.data)

    def table(self) -> LakeTable:
        """Open the table anew, as another process would."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return open_table(self.kind, self.store, **self.library.named)

    def attempt(self, windows: Sequence[Window] | None, run: str | None = None) -> LakeAttempt:
        """Plan an export of windows, or of a batch."""
        plan = self.flights.plan(self.store, windows, options=OPTIONS[self.kind], run=run)
        begin(self.store, plan)
        return LakeAttempt(self, plan)

    def rows(self, columns: Sequence[str] = ("changefeed_ulid",)) -> list[Any]:
        """Rows that readers of the table find; none before there is a table."""
        if self.table().look().version is None:
            return []
        rows = self.library.read().select(list(columns)).to_pylist()
        return sorted(tuple(row.values()) for row in rows)

    def commits(self) -> int:
        """How many commits the table has had."""
        if self.table().look().version is None:
            return 0
        return len(self.library.notes())


def check_whole(lake: Lake, rows: int) -> None:
    """Table and manifests have the same rows, each once, and nothing is wrong."""
    found = lake.rows()
    assert len(found) == len(set(found)) == manifest_rows(lake.store) == rows
    assert differences(lake.store, lake.table()) == []
    assert [fault for fault in verify(lake.store) if fault.severity.name != "NOTE"] == []
