# SPDX-License-Identifier: Apache-2.0
"""Runs an attempt at a plan: begin, write and commit unit by unit, end; also without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import closing

from airflow_changefeed.core.plan import Plan
from airflow_changefeed.exceptions import own_error
from airflow_changefeed.export.parts import cut_tasks, gather, task_name, write_parts
from airflow_changefeed.export.progress import ProgressWatch
from airflow_changefeed.export.result import ExportResult
from airflow_changefeed.output.attempts import begin, end
from airflow_changefeed.output.commit import Commit
from airflow_changefeed.output.store import ExportStore, WrittenParts
from airflow_changefeed.sources.base import FeedReader


def run_attempt(
    store: ExportStore, plan: Plan, write: Callable[[], Generator[WrittenParts, None, None]]
) -> ExportResult:
    """
    Run a plan: write, commit each unit once all of it is written, and leave nothing behind but what counts.

    Units that were committed before an error or a kill stay: the next try of the task leaves them out.

    :param write: writes all parts, and yields what each task has written as the task ends; not called for a
        plan without rows.
    :raises ChangefeedError: ours, also when it was raised in a task.
    """
    started = time.monotonic()
    begin(store, plan)
    committed = False
    try:
        commit = Commit(store, plan)
        if not plan.is_empty:
            with closing(write()) as written:
                for parts in written:
                    commit.add(parts)
        manifests = commit.finish()
        committed = True
        return ExportResult.of_commit(store, plan, manifests, seconds=time.monotonic() - started)
    except Exception as error:
        raise own_error(error) from error
    finally:
        end(store, plan, committed=committed)


def run_here(
    source: FeedReader, store: ExportStore, plan: Plan, report: Callable[[str], None]
) -> ExportResult:
    """
    Run a plan in this process, one task after the other; for plans that are not worth a Spark.

    :param source: open, and left so. Not one that reads SQLite by ADBC: the process has it open elsewhere,
        too (ADR 0003).
    :param report: takes one line of progress; may be called from another thread.
    :raises ChangefeedError: as :func:`run_attempt`.
    """

    def write() -> Generator[WrittenParts, None, None]:
        with ProgressWatch(store.files, plan, report) as progress:
            for number, task in enumerate(cut_tasks(plan)):
                facts = write_parts(
                    source,
                    store.files,
                    feed=plan.feed,
                    attempt=plan.attempt,
                    options=plan.options,
                    task=task_name(number, 0),
                    parts=[part.content for part in task],
                )
                progress.add(number, written := gather(facts, task))
                yield written

    return run_attempt(store, plan, write)
