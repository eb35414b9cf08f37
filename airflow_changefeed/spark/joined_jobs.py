# SPDX-License-Identifier: Apache-2.0
"""
Runs the small tasks of many feeds as few jobs of Spark.

A job costs Spark a tenth of a second of processor time, whatever it does; writing a feed's hour often costs
less. The tasks that are waiting when a job ends become the next job, so that no task waits for others.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_changefeed.exceptions import error_text
from airflow_changefeed.sources.arrow import byte_strings
from airflow_changefeed.spark.executors import sharing

#: Starts a function of tasks as a job, as ``cancellable_jobs`` gives it; the rows are of ``FACTS_SCHEMA``.
Submit = Callable[[Any, range], Future[list[Any]]]
#: Jobs at the same time: one runs while the feeds of the other one are committed.
AT_ONCE = 2
#: Small tasks that one task of Spark runs one after the other.
_TOGETHER = 8


@dataclass
class _Waiting:
    """A function, the number of its one task, and who waits for its rows."""

    function: Any
    number: int
    future: Future[list[Any]] = field(default_factory=Future)


class JoinedJobs:
    """
    Joins functions of one small task each.

    A task that fails in a joined job becomes a job of its own, which Spark tries as often as it is set to,
    and whose error counts: other feeds go on.

    :param submit: starts a job; ``AT_ONCE`` at the same time.
    """

    def __init__(self, submit: Submit) -> None:
        self._submit = submit
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._running = 0

    def __call__(self, function: Any, numbers: range) -> Future[list[Any]]:
        """Return what the task of a function will give; ``numbers`` has its number."""
        (number,) = numbers
        one = _Waiting(function, number)
        with self._lock:
            self._waiting.append(one)
        self._start()
        return one.future

    def _start(self) -> None:
        with self._lock:
            if self._running == AT_ONCE or not self._waiting:
                return
            batch, self._waiting = self._waiting, []
            self._running += 1
        tasks: dict[int, list[tuple[int, Any, int]]] = {}
        for place, one in enumerate(batch):
            tasks.setdefault(place // _TOGETHER, []).append((place, one.function, one.number))
        try:
            job = self._submit(JoinedTasks(tasks), range(len(tasks)))
        except RuntimeError as error:
            # The pool was shut down: the list of feeds is given up.
            for one in batch:
                one.future.set_exception(error)
            return
        job.add_done_callback(lambda done: self._ended(batch, done))

    def _ended(self, batch: Sequence[_Waiting], job: Future[list[Any]]) -> None:
        with self._lock:
            self._running -= 1
        self._start()
        found: dict[int, list[Any]] = {}
        if not job.cancelled() and job.exception() is None:
            # By task: a client of Spark Connect that lost an answer may have run a job twice.
            answers = [json.loads(row["facts"]) for row in job.result()]
            found = {answer["place"]: answer["rows"] for answer in answers if "rows" in answer}
        for place, one in enumerate(batch):
            if place in found:
                one.future.set_result([{"facts": text} for text in found[place]])
            else:
                self._alone(one)

    def _alone(self, one: _Waiting) -> None:
        def end(job: Future[list[Any]]) -> None:
            if job.cancelled():
                one.future.cancel()
            elif (error := job.exception()) is not None:
                one.future.set_exception(error)
            else:
                one.future.set_result(job.result())

        try:
            self._submit(one.function, range(one.number, one.number + 1)).add_done_callback(end)
        except RuntimeError as error:
            one.future.set_exception(error)


@dataclass(frozen=True)
class JoinedTasks:
    """
    The function of a joined job; each of its tasks runs those of several functions.

    :param tasks: by number of a task: place in the job, function, and number of the function's task.
    """

    tasks: Mapping[int, Sequence[tuple[int, Any, int]]] = field(repr=False)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the tasks whose numbers come in, and yield the rows, or the error, of each function."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with sharing():
                    outcomes = [
                        (place, _outcome(function, task)) for place, function, task in self.tasks[number]
                    ]
                for place, outcome in outcomes:
                    text = json.dumps({"place": place, **outcome})
                    yield pa.RecordBatch.from_arrays([byte_strings([text], pa.string())], names=["facts"])


def _outcome(function: Any, task: int) -> dict[str, Any]:
    numbers = pa.RecordBatch.from_arrays([pa.array([task])], names=["id"])
    try:
        return {"rows": [text for rows in function(iter([numbers])) for text in rows.column(0).to_pylist()]}
    except Exception as error:
        return {"error": error_text(error)}
