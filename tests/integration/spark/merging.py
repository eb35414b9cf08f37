# SPDX-License-Identifier: Apache-2.0
"""A current table of a written export, and who merges into it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_changefeed.export.job_connection import JobConnection
from airflow_changefeed.folding.current import CurrentOutput
from airflow_changefeed.folding.merge import merge
from airflow_changefeed.folding.merge_task import MergedFiles, MergeRequest, MergeResult, MergeTask
from airflow_changefeed.spark.merge.merge_job import run_merge
from airflow_changefeed.tables.base import CURRENT, LakeTable, TableChange, TableState
from airflow_changefeed.tables.open import open_table
from tests.integration.spark.shoes import HOUR
from tests.unit.export.captures import CAPTURE, TABLE, CapturedExport, Event
from tests.unit.export.flights import START, hours
from tests.unit.tables.formats import LIBRARIES, Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Merging:
    """
    An export, and a current table of it.

    :param format: one of ``CURRENT_FORMATS``.
    """

    def __init__(self, spark: SparkSession, folder: Path, format: str, **export: Any) -> None:
        self.spark = spark
        self.format = format
        self.folder = folder
        self.export = CapturedExport.create(folder / "out", **export)
        self.lake = str(folder / "lake")
        self.library = LIBRARIES[format](folder, self.output.layout.data)
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
        handed = MergeTask.from_json(task.to_json(), where="task")
        self.tasks.append(handed)
        found = run_merge(lambda: self.spark, handed, JobConnection({}), self.said.append)
        return MergedFiles.from_json(found.to_json(), where="result")

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
        self.export.write(events, hours(hour, hour + 1)[0])
        return START + (hour + 1) * HOUR

    def rows(self, *, shards: bool = False) -> list[Row]:
        """Return the rows that readers of the table find, by key."""
        found = self.library.read()
        rows = found.to_pylist() if shards else found.drop(["changefeed_shard"]).to_pylist()
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
