# SPDX-License-Identifier: Apache-2.0
"""A current table of a written export, and who merges into it, without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.codec import decode, encode
from airflow_changefeed.formats.base import CURRENT, LakeTable, TableChange, TableState
from airflow_changefeed.formats.publish import open_table
from airflow_changefeed.lake.current import DELETED_COLUMN, KEEP, CurrentOutput
from airflow_changefeed.lake.merge import merge
from airflow_changefeed.lake.merge_task import MergedFiles, MergeRequest, MergeResult, MergeTask
from airflow_changefeed.sources.base import SHARD_COLUMN
from tests.unit.export.captures import CAPTURE, HOUR, TABLE, CapturedExport, Event
from tests.unit.export.flights import START, hours
from tests.unit.formats.libraries import LIBRARIES, Row


class Current:
    """
    An export, and a current table of it.

    :param format: one of ``CURRENT_FORMATS``.
    """

    def __init__(self, folder: Path, format: str, **export: Any) -> None:
        self.format = format
        self.folder = folder
        self.export = CapturedExport.create(folder / "out", **export)
        self.lake = str(folder / "lake")
        self.library = LIBRARIES[format](folder, self.output.layout.data)
        self.events: list[Event] = []
        self.said: list[str] = []
        self.tasks: list[MergeTask] = []

    def open(self, output: CurrentOutput) -> LakeTable:
        """Open the table, as another process would."""
        return open_table(self.format, output, use=CURRENT, **self.library.named)

    @property
    def output(self) -> CurrentOutput:
        """Where the table lies."""
        return CurrentOutput(self.lake, CAPTURE, TABLE)

    def look(self) -> TableState:
        """Return the table as it is now."""
        return self.open(self.output).look()

    def run(self, task: MergeTask) -> MergedFiles:
        """Run the job here, with its task as it is handed over."""
        handed = MergeTask.from_json(task.to_json(), named="task")
        self.tasks.append(handed)
        return decode(MergedFiles, encode(self.job(handed)), named="result")

    def job(self, task: MergeTask) -> MergedFiles:
        """Write all rows into one file, in place of all others; as the Spark job may."""
        rows: dict[int, Row] = {}
        for event in sorted(self.events, key=lambda each: each.ulid):
            row = event.new or event.old
            if row is not None and event.at < task.at:
                gone = event.ulid.time if event.new is None else None
                rows[row["id"]] = {**row, SHARD_COLUMN: 0, DELETED_COLUMN: gone}
        kinds = {**task.source(None).kinds, SHARD_COLUMN: pa.int64()}
        if task.deleted == KEEP:
            kinds[DELETED_COLUMN] = pa.timestamp("us", "UTC")
        else:
            rows = {key: row for key, row in rows.items() if row[DELETED_COLUMN] is None}
        folder = Path(self.output.writing(task.attempt))
        folder.mkdir(parents=True)
        table = pa.Table.from_pylist(list(rows.values()), pa.schema(list(kinds.items())))
        pq.write_table(table, folder / "part-00000-0.parquet")
        return MergedFiles(self.output.written(task.attempt), tuple(each.path for each in task.files))

    def merge(
        self,
        at: datetime,
        open_lake: Callable[[CurrentOutput], LakeTable] | None = None,
        run: Callable[[MergeTask], MergedFiles] | None = None,
        **more: Any,
    ) -> MergeResult:
        """Merge until a time."""
        named = {"table_format": self.format, "catalog_table": self.library.catalog_table}
        request = MergeRequest(
            CAPTURE, self.export.store.path, self.lake, at, "tests/run", **{**named, **more}
        )
        return merge(request, None, open_lake or self.open, run or self.run, self.said.append)

    def window(self, hour: int, *events: Event) -> datetime:
        """Export an hour in one shard; return its end."""
        self.events += events
        self.export.write(events, hours(hour, hour + 1)[0])
        return START + (hour + 1) * HOUR

    def rows(self, *, shards: bool = False) -> list[Row]:
        """Return the rows that readers of the table find, by key."""
        found = self.library.read()
        rows = found.to_pylist() if shards else found.drop([SHARD_COLUMN]).to_pylist()
        return sorted(rows, key=lambda row: (row["id"], repr(row)))

    def versions(self) -> int:
        """How many commits the table has had."""
        return len(self.library.notes())

    def files(self) -> list[str]:
        """Paths that the table has."""
        return sorted(file.path for file in self.look().plain)


class StoppedError(Exception):
    """The process is gone."""


class Between:
    """
    A table that calls somebody before and after each commit.

    :param before, after: may raise.
    """

    def __init__(
        self,
        lake: LakeTable,
        before: Callable[[], None] = lambda: None,
        after: Callable[[], None] = lambda: None,
    ) -> None:
        self._lake = lake
        self._before = before
        self._after = after
        self.what = lake.what
        self.check = lake.check
        self.look = lake.look
        self.unused = lake.unused

    def commit(self, seen: TableState, change: TableChange) -> None:
        """Commit, with somebody called before and after."""
        self._before()
        self._lake.commit(seen, change)
        self._after()


def ids(rows: Iterable[Row]) -> list[int]:
    """Return the keys of rows."""
    return [row["id"] for row in rows]


#: Where a merge is stopped, and how: takes the table and what patches, and returns arguments of ``merge``.
Kill = Callable[[Current, Any], dict[str, Any]]


def _kills() -> list[tuple[str, Kill]]:
    def stop(*_: object) -> None:
        raise StoppedError

    def job(current: Current, patch: Any) -> dict[str, Any]:
        def run(task: MergeTask) -> MergedFiles:
            current.run(task)
            raise StoppedError

        return {"run": run}

    def document(current: Current, patch: Any) -> dict[str, Any]:
        patch.setattr(CurrentOutput, "write", stop)
        return {}

    def clean(current: Current, patch: Any) -> dict[str, Any]:
        patch.setattr(CurrentOutput, "clean", stop)
        return {}

    def commit(when: str) -> Kill:
        return lambda current, patch: {
            "open_lake": lambda output: Between(current.open(output), **{when: stop})
        }

    return [
        ("files", job),
        ("document", document),
        ("commit", commit("before")),
        ("answer", commit("after")),
        ("cleanup", clean),
    ]


KILLS = _kills()


def kill(current: Current, draw: Random, at: datetime, **more: Any) -> str:
    """Stop a merge at a random place, if it gets there, as if its process were gone; return which."""
    where, stopped = draw.choice(KILLS)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(StoppedError):
        current.merge(at, **stopped(current, patch), **more)
    return where
