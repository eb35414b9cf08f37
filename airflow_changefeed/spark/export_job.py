# SPDX-License-Identifier: Apache-2.0
"""Exports on Spark what a spec says, or a list of specs: the driver, and its tasks on the executors."""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from airflow_changefeed.core.export_plan import ExportOptions, Plan
from airflow_changefeed.core.feed import counted
from airflow_changefeed.exceptions import error_text
from airflow_changefeed.export.job_spec import (
    Draws,
    JobConnection,
    is_finished,
    read_job,
    read_spec,
    start_plan,
    write_receipt,
)
from airflow_changefeed.export.parts import (
    PlannedPart,
    cut_tasks,
    gather,
    run_attempt,
    task_name,
    write_parts,
)
from airflow_changefeed.export.result import ExportResult, ProgressWatch
from airflow_changefeed.output.attempts import forget
from airflow_changefeed.output.layout import parse_spec
from airflow_changefeed.output.store import ExportStore, WrittenParts
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.arrow import byte_strings
from airflow_changefeed.spark.executors import opened
from airflow_changefeed.spark.joined_jobs import AT_ONCE, JoinedJobs
from airflow_changefeed.storage.files import open_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Jobs of Spark at the same time: so much of an export is lost at most when it is killed.
_MOST_JOBS = 32
#: Rows of the plans whose jobs are joined: beyond that, a source that reads fast saves more than a job costs.
_JOINED_ROWS = 10_000
#: Feeds of a job that are exported at the same time; most of them wait for a joined job.
_FEEDS_AT_ONCE = 32


def _run_specs(
    spark: Callable[[], SparkSession],
    specs: Sequence[str],
    connection: JobConnection,
    report: Callable[[str], None],
) -> ExportResult:
    """Run specs, some at the same time; one that fails does not stop the others."""
    from airflow_changefeed.spark.version_compat import cancellable_jobs

    done = count(1)
    join: JoinedJobs | None = None
    lock = Lock()

    def joined() -> JoinedJobs:
        # A list of plans without rows needs no session.
        nonlocal join
        with lock:
            if join is None:
                join = JoinedJobs(jobs.enter_context(cancellable_jobs(spark(), AT_ONCE)))
            return join

    def run(spec: str) -> ExportResult | Exception:
        _, feed, _ = parse_spec(spec)
        try:
            result = run_spec(spark, spec, connection, lambda line: None, joined, draws)
        except Exception as error:
            report(f"changefeed feed {next(done)} of {len(specs)}, {feed}: {error_text(error)}")
            return error
        of = f"{next(done)} of {len(specs)}"
        report(
            f"changefeed feed {of}, {feed}: {counted(result.rows, 'row')} in {counted(result.units, 'unit')}"
        )
        return result

    draws: Draws | None = None
    with (
        contextlib.ExitStack() as jobs,
        ThreadPoolExecutor(_FEEDS_AT_ONCE, thread_name_prefix="changefeed-feed") as pool,
    ):
        # Where the source cannot be opened, each spec says so in a receipt of its own.
        with contextlib.suppress(Exception):
            draws = Draws(jobs.enter_context(closing(open_source(connection.source))))
        found = list(pool.map(run, specs))
    failed = [each for each in found if isinstance(each, Exception)]
    if failed:
        report(f"changefeed: {len(failed)} of {len(specs)} feeds failed; the first error follows")
        raise failed[0]
    return ExportResult.total(each for each in found if isinstance(each, ExportResult))


def run_spec(
    spark: Callable[[], SparkSession],
    uri: str,
    connection: JobConnection,
    report: Callable[[str], None],
    joined: Callable[[], JoinedJobs] | None = None,
    draws: Draws | None = None,
) -> ExportResult:
    """
    Start what a spec says: write, commit what is whole, and leave a receipt, whatever becomes of it.

    Of a list of specs, one that fails does not stop the others; each has a receipt of its own.

    :param spark: makes or gives the session; not called for a plan without rows.
    :param uri: of the spec, or of a list of specs.
    :param report: takes one line of progress.
    :param joined: of a list, what joins the jobs of its small plans.
    :param draws: of a list, what draws the tokens.
    :return: of a list, the sums.
    :raises ChangefeedError: ours, also when it was raised in a task; of a list the first one, after all.
    """
    specs = read_job(uri, connection.storage_options)
    if specs != (uri,):
        return _run_specs(spark, specs, connection, report)
    store, plan = read_spec(uri, connection.storage_options)
    spec = attempt = plan.attempt
    try:
        if draws is not None:
            plan = start_plan(draws, store, plan)
        else:
            with closing(open_source(connection.source)) as source:
                plan = start_plan(Draws(source), store, plan)
        attempt = plan.attempt
        result = run_attempt(store, plan, partial(write, spark, store, plan, connection, report, joined))
    except Exception as error:
        # Where the output cannot be written either, the error is what counts.
        with contextlib.suppress(Exception):
            write_receipt(store, spec, attempt, ExportResult.of_error(error, attempt, spec))
        raise
    write_receipt(store, spec, attempt, result)
    if is_finished(store, spec):
        # Nobody waits for it any more, as where a cluster starts a driver again.
        forget(store, [attempt])
    return result


def write(
    session: Callable[[], SparkSession],
    store: ExportStore,
    plan: Plan,
    connection: JobConnection,
    report: Callable[[str], None],
    joined: Callable[[], JoinedJobs] | None = None,
) -> Generator[WrittenParts, None, None]:
    """
    Run a plan's tasks in a bounded number of small jobs at the same time, and yield what each task has
    written as soon as its job is over.

    (One job and ``toLocalIterator`` would give partition after partition, and run the next one only then.)
    """
    from airflow_changefeed.spark.version_compat import cancellable_jobs

    tasks = cut_tasks(plan)
    is_joined = joined is not None and len(tasks) == 1 and plan.rows <= _JOINED_ROWS
    each = -(-len(tasks) // _MOST_JOBS)
    jobs = [range(first, min(first + each, len(tasks))) for first in range(0, len(tasks), each)]
    units = {part.unit for task in tasks for part in task}
    report(
        f"changefeed job: feed {plan.feed}, attempt {plan.attempt}: {counted(plan.rows, 'row')} in "
        f"{counted(len(units), 'unit')}, {counted(len(tasks), 'task')}"
    )

    def function(numbers: range) -> WriteParts:
        return WriteParts(
            plan.feed,
            plan.path,
            plan.attempt,
            plan.options,
            connection,
            {number: packed(tasks[number]) for number in numbers},
            plan.database,
        )

    with (
        contextlib.nullcontext(joined())
        if joined is not None and is_joined
        else cancellable_jobs(session(), len(jobs)) as submit,
        ProgressWatch(store.files, plan, report) as progress,
    ):
        for done in as_completed([submit(function(numbers), numbers) for numbers in jobs]):
            # By task: a client of Spark Connect that lost an answer may have run a job twice.
            told = {(value := json.loads(row["facts"]))["task"]: value["facts"] for row in done.result()}
            for number, facts in told.items():
                progress.add(number, written := gather(facts, tasks[number]))
                yield written


@dataclass(frozen=True)
class WriteParts:
    """
    The function that Spark's tasks run; it carries all they need, so that nothing stands in the plan or in
    settings.

    :param tasks: number of a task to its parts, as :func:`packed` makes them.
    :param database: identity of that which was planned for; the connection leads here, too.
    """

    feed: str
    path: str
    attempt: int
    options: ExportOptions
    connection: JobConnection = field(repr=False)
    tasks: Mapping[int, bytes] = field(repr=False)
    database: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the parts of the tasks whose numbers come in, and yield facts."""
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    yield _facts(number, list(self._run(number)))
                except Exception as error:
                    # Spark hands on nothing of an exception but its text.
                    raise RuntimeError(error_text(error)) from error

    def _run(self, number: int) -> Iterator[dict[str, Any]]:
        with opened(self.connection, self.feed, self.database) as source:
            yield from write_parts(
                source,
                open_files(self.path, self.connection.storage_options),
                feed=self.feed,
                attempt=self.attempt,
                options=self.options,
                task=task_name(number, _task_attempt()),
                parts=json.loads(zlib.decompress(self.tasks[number])),
            )


def packed(task: Sequence[PlannedPart]) -> bytes:
    """Write a task's parts as compressed JSON."""
    return zlib.compress(json.dumps([part.content for part in task]).encode())


def _facts(number: int, facts: list[dict[str, Any]]) -> pa.RecordBatch:
    text = byte_strings([json.dumps({"task": number, "facts": facts})], pa.string())
    return pa.RecordBatch.from_arrays([text], names=["facts"])


def _task_attempt() -> int:
    """Return a number that no other attempt at any task of this Spark application has."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.taskAttemptId() if context is not None else 0
