# SPDX-License-Identifier: Apache-2.0
"""
How far an export is: each task that runs for long leaves a small file beside what it writes; the driver adds
them to what ended tasks have told it.

Files, because Spark does not inform the driver about a running Python task, and because the output is the one
place that all of them reach.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.plan import Plan
from airflow_changefeed.output.layout import Layout
from airflow_changefeed.output.store import WrittenParts
from airflow_changefeed.storage.files import Files

#: Rows and bytes by shard.
Done: TypeAlias = Mapping[str, tuple[int, int]]
SECONDS = 3.0
_UNITS = ("B", "kB", "MB", "GB", "TB")


class TaskProgress:
    """
    A task's side.

    :param path: where it leaves its file.
    :param seconds: how often at the most.
    """

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
    """
    The driver's side: says every few seconds how far the tasks are, while it is entered.

    :param write: takes one line.
    """

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
