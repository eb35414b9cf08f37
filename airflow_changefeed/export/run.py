# SPDX-License-Identifier: Apache-2.0
"""Runs an attempt at a plan: begin, write, commit, end, result; also without Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from airflow_changefeed.core.plan import Plan
from airflow_changefeed.exceptions import own_error
from airflow_changefeed.export.parts import gather, plan_parts, task_name, write_parts
from airflow_changefeed.export.progress import ProgressWatch
from airflow_changefeed.export.result import ExportResult, write_result
from airflow_changefeed.output.commit import begin, commit, end
from airflow_changefeed.output.store import ExportStore, StagedFile
from airflow_changefeed.sources.base import FeedReader

if TYPE_CHECKING:
    import pyarrow as pa

#: The files of all units with rows, and their columns.
Written: TypeAlias = "tuple[Sequence[StagedFile], pa.Schema | None]"


def run_attempt(store: ExportStore, plan: Plan, write: Callable[[], Written]) -> ExportResult:
    """
    Run a plan: write, commit, and leave nothing behind but what counts and ``result.json``.

    :param write: writes all parts, and returns what was written; not called for a plan without rows.
    :raises ChangefeedError: ours, also when it was raised in a task.
    """
    started = time.monotonic()
    begin(store, plan)
    committed = False
    try:
        written, schema = ([], None) if plan.is_empty else write()
        manifests = commit(store, plan, written, schema)
        committed = True
        result = ExportResult.of_manifests(store, manifests, seconds=time.monotonic() - started)
        write_result(store, plan.attempt, result)
        return result
    except Exception as error:
        write_result(store, plan.attempt, ExportResult.of_error(error))
        raise own_error(error) from error
    finally:
        end(store, plan, committed=committed)


def run_here(
    source: FeedReader, store: ExportStore, plan: Plan, report: Callable[[str], None]
) -> ExportResult:
    """
    Run a plan in this process, as one task that writes part after part; for plans that are not worth a Spark.

    :param source: open, and left so. Not one that reads SQLite by ADBC: the process has it open elsewhere,
        too (ADR 0003).
    :param report: takes one line of progress; may be called from another thread.
    :raises ChangefeedError: as :func:`run_attempt`.
    """

    def write() -> Written:
        with ProgressWatch(store.files, plan, report):
            facts = write_parts(
                source,
                store.files,
                feed=plan.feed,
                attempt=plan.attempt,
                options=plan.options,
                task=task_name(0, 0),
                parts=[part.content for part in plan_parts(plan)],
            )
            return gather(facts, plan.feed, 1)

    return run_attempt(store, plan, write)
