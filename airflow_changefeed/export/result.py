# SPDX-License-Identifier: Apache-2.0
"""
The result of an export, from the receipt of its job to the task's log; and how far a running one is.

Progress stands in files, because Spark does not inform the driver about a running Python task, and because
the output is the one place that all of them reach.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.export_plan import Manifest, Plan
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import error_text, own_error
from airflow_changefeed.output.layout import Layout, ManifestName
from airflow_changefeed.output.store import ExportStore, WrittenParts
from airflow_changefeed.storage.files import Files

#: With more units or shards than this, folders are named instead of files: results are in Airflow's
#: database.
MOST_NAMED = 100
DONE, FAILED = "done", "failed"
#: Name of the receipt beside a task.
RESULT = "result.json"


@dataclass(frozen=True, kw_only=True)
class Receipt(Document):
    """
    How a job ended.

    :param error: of :func:`~airflow_changefeed.exceptions.error_text`; None if it did what it should.
    """

    error: str | None = None

    def raise_error(self, launcher: Exception | None = None) -> None:
        """Raise the job's error with its class, from that of its launcher; return if it succeeded."""
        if self.error is not None:
            raise own_error(self.error) from launcher


@dataclass(frozen=True)
class TaskResult(Receipt):
    """The receipt of a job that was handed a task; each kind of task has its own facts, as JSON values."""

    KIND = "changefeed task result"

    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ExportResult(Receipt):
    """
    What became of an export.

    :param manifests: paths of the manifests, in the plan's order.
    :param units: how many export units are complete now.
    :param size: bytes of all files.
    :param seconds: how long the job took, its start of Spark left out.
    :param attempt: token of the attempt.
    :param spec: of a job: token of the plan that it was started with; else 0.
    """

    KIND = "changefeed result"

    status: str
    manifests: tuple[str, ...] = ()
    units: int = 0
    rows: int = 0
    size: int = 0
    seconds: float = 0.0
    attempt: int = 0
    spec: int = 0

    @classmethod
    def of_commit(
        cls, store: ExportStore, plan: Plan, manifests: Sequence[Manifest], *, seconds: float = 0.0
    ) -> ExportResult:
        """Return the result of an attempt, by its manifests; the plan names those of earlier tries."""
        size = {planned.unit: planned.size for planned in plan.units}
        size.update({manifest.unit: manifest.size for manifest in manifests})
        return cls(
            DONE,
            tuple(
                store.layout.manifest(planned.unit, planned.committed_by or plan.attempt)
                for planned in plan.units
            ),
            len(plan.units),
            sum(planned.rows for planned in plan.units),
            sum(size.values()),
            round(seconds, 3),
            attempt=plan.attempt,
            spec=plan.spec,
        )

    @classmethod
    def total(cls, results: Iterable[ExportResult]) -> ExportResult:
        """Return the sums of what succeeded; the manifests are those of all."""
        each = list(results)
        return cls(
            DONE,
            tuple(path for result in each for path in result.manifests),
            sum(result.units for result in each),
            sum(result.rows for result in each),
            sum(result.size for result in each),
        )

    def after(self, store: ExportStore, earlier: Sequence[Manifest]) -> ExportResult:
        """Return the result together with the batches that earlier tries have committed, in that order."""
        return replace(
            self,
            manifests=(
                *(store.layout.manifest(manifest.unit, manifest.attempt) for manifest in earlier),
                *self.manifests,
            ),
            units=len(earlier) + self.units,
            rows=sum(manifest.rows for manifest in earlier) + self.rows,
            size=sum(manifest.size for manifest in earlier) + self.size,
        )

    @classmethod
    def of_error(cls, error: BaseException, attempt: int, spec: int) -> ExportResult:
        """Return the result of a failure."""
        return cls(FAILED, error=error_text(error), attempt=attempt, spec=spec)


def attempts_of(result: ExportResult) -> set[int]:
    """Return the tokens of all attempts that have committed units of an export, and of its plan."""
    names = (ManifestName.parse(path.rpartition("/")[2]) for path in result.manifests)
    return {result.attempt, *(name.attempt for name in names if name)}


def summary(
    plan: Plan,
    store: ExportStore,
    result: ExportResult,
    rows: Mapping[Shard, CursorRow],
) -> dict[str, Any]:
    """Return an export's result as JSON values, with the cursors of the shards that were exported."""
    windows = {planned.unit.window for planned in plan.units if planned.unit.window is not None}
    spans = [(window.start, window.end) for window in sorted(windows)]
    if len(spans) > MOST_NAMED:
        spans = [(spans[0][0], spans[-1][1])]
    return {
        "feed": plan.feed,
        "attempt": result.attempt,
        "units": result.units,
        "rows": result.rows,
        "bytes": result.size,
        "windows": [f"{format_time(start)}/{format_time(end)}" for start, end in spans],
        "manifests": named(result.manifests, store),
        "cursors": {str(shard): str(row.ulid) for shard, row in list(rows.items())[:MOST_NAMED]},
    }


def named(manifests: Sequence[str], store: ExportStore) -> list[str]:
    """Return the paths of manifests, or their folder if there are too many."""
    return list(manifests) if len(manifests) <= MOST_NAMED else [store.layout.manifests]


def waiting(rows: Sequence[CursorRow]) -> Iterator[str]:
    """Yield a line for each gap in a frontier: which cursor waits for it."""
    for row in rows:
        for gap in row.frontier.missing():
            yield (
                f"The cursor of consumer {row.consumer}, shard {row.shard}, waits at "
                f"{format_time(row.ulid.next().time)} for windows that are not exported yet: "
                f"{format_time(gap.after.next().time)} to {format_time(gap.upto.next().time)}"
            )


#: Rows and bytes by shard.
Done: TypeAlias = Mapping[str, tuple[int, int]]
SECONDS = 3.0
_UNITS = ("B", "kB", "MB", "GB", "TB")


class TaskProgress:
    """A task's side: writes a file every few seconds at the most."""

    def __init__(self, files: Files, path: str, seconds: float = SECONDS) -> None:
        self._files = files
        self._path = path
        self._seconds = seconds
        self._done: dict[str, list[int]] = {}
        self._next = time.monotonic() + seconds

    def add(self, shard: str, rows: int, size: int) -> None:
        """Add what was written."""
        done = self._done.setdefault(shard, [0, 0])
        done[0] += rows
        done[1] += size
        if time.monotonic() >= self._next:
            self.write()

    def write(self) -> None:
        """Write the file; a task's last rows need none, as what it returns says them."""
        self._files.write(self._path, json.dumps(self._done).encode())
        self._next = time.monotonic() + self._seconds


class ProgressWatch:
    """The driver's side: says every few seconds in a line how far the tasks are, while it is entered."""

    def __init__(
        self, files: Files, plan: Plan, write: Callable[[str], None], seconds: float = SECONDS
    ) -> None:
        self._files = files
        self._folder = Layout(files.root, plan.feed).writing(plan.attempt)
        self._planned: Counter[str] = Counter()
        self._shards = [shard_text(planned.unit.shard) for planned in plan.units]
        for shard, planned in zip(self._shards, plan.units, strict=True):
            if not planned.committed_by:
                self._planned[shard] += planned.rows
        #: Rows and bytes by shard of each task that has ended.
        self._ended: dict[int, Done] = {}
        self._write = write
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="changefeed progress", daemon=True)
        self._last = ""

    def __enter__(self) -> ProgressWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.report()

    def add(self, task: int, written: WrittenParts) -> None:
        """Count what a task has written that ended."""
        done: dict[str, tuple[int, int]] = {}
        for file in written.files:
            rows, size = done.get(self._shards[file.unit], (0, 0))
            done[self._shards[file.unit]] = (rows + file.facts.rows, size + file.facts.size)
        self._ended[task] = done

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self.report()

    def report(self) -> None:
        """Write the progress of the tasks, if it changed."""
        try:
            line = line_of(self._planned, self._done())
        except Exception as error:
            # Reporting must never end the work that it reports on.
            line = f"changefeed progress: not readable ({type(error).__name__}: {error})"
        if line != self._last:
            self._last = line
            self._write(line)

    def _done(self) -> Done:
        """
        Return rows and bytes by shard, over all tasks.

        A task that ran twice counts once: as it ended, else the attempt that is furthest.
        """
        tasks: dict[int, Done] = {}
        ended = dict(self._ended)
        for name in self._files.names(self._folder):
            task = int(name.partition("-")[0])
            if task in ended or not (content := self._files.read(f"{self._folder}/{name}/progress.json")):
                continue
            done: Done = json.loads(content)
            if _rows(done) >= _rows(tasks.get(task, {})):
                tasks[task] = done
        total: dict[str, tuple[int, int]] = {}
        for done in (tasks | ended).values():
            for shard, (rows, size) in done.items():
                before = total.get(shard, (0, 0))
                total[shard] = (before[0] + rows, before[1] + size)
        return total


def _rows(done: Done) -> int:
    return sum(rows for rows, _ in done.values())


def line_of(planned: Mapping[str, int], done: Done) -> str:
    """Write ``changefeed progress: shard 1: 123 of 456 rows, 78 kB; ...``."""
    shards = []
    for shard, rows in planned.items():
        written, size = done.get(shard, (0, 0))
        shards.append(f"shard {shard}: {written} of {rows} rows, {size_text(size)}")
    return f"changefeed progress: {'; '.join(shards)}"


def size_text(size: float) -> str:
    """Write a number of bytes for people, in powers of 1000."""
    for unit in _UNITS[:-1]:
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.0f} {_UNITS[-1]}"
