# SPDX-License-Identifier: Apache-2.0
"""What keeps the DAG of a consumer from moving its cursor."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_changefeed.core.consumer import LONGEST_RUN
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import Fault, FaultKind, not_checked, shell
from airflow_changefeed.core.times import format_time
from airflow_changefeed.cursors.beginnings import backfill_command
from airflow_changefeed.exceptions import AirflowUnavailableError
from airflow_changefeed.sources.base_cursors import CursorStore


@dataclass(frozen=True)
class DagState:
    """
    What Airflow knows of a DAG.

    :param is_paused: None if Airflow does not say.
    :param last_run: its newest run, with the state; empty if it has none, or Airflow does not say.
    """

    dag_id: str
    is_there: bool = True
    is_paused: bool | None = None
    last_run: str = ""
    last_state: str = ""


#: Returns what Airflow knows of a DAG; raises AirflowUnavailableError if it does not answer.
FindDag = Callable[[str], DagState]


def dag_faults(
    source: CursorStore,
    find_dag: FindDag,
    feed: str,
    consumer: str,
    rows: Sequence[CursorRow],
    now: datetime,
    max_age: timedelta,
    left_out: datetime | None = None,
) -> list[Fault]:
    """
    Return why a consumer's DAG, or process, does not move its cursors.

    :param max_age: a consumer that has moved since is at work.
    :param left_out: begin of the first window that is not exported; None if it exports no windows.
    """
    where = f"feed {feed}, consumer {consumer}"
    last = max(rows, key=lambda row: row.moved_at, default=None)
    dag_id = last_dag(source, feed, consumer, rows)
    dag, found, unknown = None, [], []
    try:
        dag = find_dag(dag_id) if dag_id is not None else None
    except AirflowUnavailableError as problem:
        # That it is late is known, whatever became of its DAG.
        unknown.append(not_checked(where, f"what became of its DAG: {problem.what}", problem.remedy))
    if dag is not None and dag.is_paused:
        remedy = f"Unpause it: airflow dags unpause {shlex.quote(dag.dag_id)}"
        if left_out is not None:
            backfill = backfill_command(dag.dag_id, left_out)
            remedy += f". If its schedule does not catch up, backfill what it left out: {backfill}"
        found.append(Fault(FaultKind.DAG_PAUSED, where, f"DAG {dag.dag_id} is paused", remedy))
    if dag is not None and dag.last_state == "failed":
        what = f"run {dag.last_run} of DAG {dag.dag_id}, its last one, failed"
        remedy = "Read the failed task's log, mend the cause, then clear the task"
        found.append(Fault(FaultKind.RUN_FAILED, where, what, remedy))
    if found or (last is not None and now - last.moved_at <= max_age):
        return [*unknown, *found]
    what = f"nothing has moved its cursor {'yet' if last is None else f'since {_move(last)}'}"
    # Without the command: who is woken by this must not paste what removes a consumer.
    drop = "drop the consumer if nobody needs it any more"
    remedy = f"Run its DAG or process again, or {drop}"
    if dag is not None and not dag.is_there:
        what = f"{what}, and Airflow has no DAG {dag.dag_id} any more"
        remedy = (
            "If this is another Airflow, or its metadata database is new, run this where the DAG runs. "
            "Otherwise restore the DAG"
        )
    elif dag is not None and dag.last_run:
        what = f"{what}; run {dag.last_run} of DAG {dag.dag_id}, its last one, is {dag.last_state}"
        remedy = "Look at that run and at the DAG's schedule, and whether a scheduler runs"
    return [*unknown, Fault(FaultKind.NO_RUN, where, what, remedy)]


def catching_up(feed: str, consumer: str, rows: Sequence[CursorRow]) -> Fault:
    """Return why a consumer is late whose cursors move, if nothing else was found: it has not caught up."""
    last = max(rows, key=lambda row: row.moved_at)
    what = f"nothing was found that stops it; its cursor moved last at {_move(last)}"
    leases = shell("leases", "--feed", feed)
    remedy = f"Look again later whether the cursor has moved. If it has not, see who holds it: {leases}"
    return Fault(FaultKind.CATCHING_UP, f"feed {feed}, consumer {consumer}", what, remedy)


def _move(row: CursorRow) -> str:
    return format_time(row.moved_at) + (f", by {row.moved_by}" if row.moved_by else "")


def last_dag(source: CursorStore, feed: str, consumer: str, rows: Sequence[CursorRow]) -> str | None:
    """Return the DAG whose run moved one of a consumer's cursors last; people may have moved it since."""
    last = max(rows, key=lambda row: row.moved_at, default=None)
    dag_id = _dag_of(last.moved_by) if last is not None else None
    if dag_id is None:
        ids = (_dag_of(change.by) for change in source.history(feed, consumer))
        dag_id = next((each for each in ids if each is not None), None)
    return dag_id


def _dag_of(name: str) -> str | None:
    """
    Return the DAG of a run's name, ``dag_id/run_id/task_id/try``; None for other names.

    A run that consumes has its process behind it, ``@host:process:...``, and is cut if it is long.
    """
    run, _, process = name.partition("@")
    is_run = re.fullmatch(r"[^/]+/[^/]+/[^/]+/[0-9]+", run) or (process and len(run) == LONGEST_RUN)
    dag_id, slash, _ = run.partition("/")
    return dag_id if is_run and slash else None
