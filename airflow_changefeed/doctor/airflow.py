# SPDX-License-Identifier: Apache-2.0
"""What Airflow says of a consumer: whether its DAG moves the cursor, and what its Variable holds."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from airflow_changefeed.core.completeness import Verdict, judge, of_overview
from airflow_changefeed.core.consumer import LONGEST_RUN, FeedOverview
from airflow_changefeed.core.cursor import CursorDocument, CursorRow, variable_key, variable_prefix
from airflow_changefeed.core.fault import Fault, FaultKind, not_checked, shell
from airflow_changefeed.core.feed import counted
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.cursors.cursors import VariableStore, compare, rebuild_command, recovery_commands
from airflow_changefeed.cursors.window_grid import backfill_command, events_before, export_grids
from airflow_changefeed.exceptions import (
    AirflowUnavailableError,
    CursorEditedError,
    CursorFormatError,
    FeedNotFoundError,
    PurgedError,
    UnsupportedVersionError,
)
from airflow_changefeed.sources.base import FeedReader, FeedSource
from airflow_changefeed.sources.base_consumers import CursorStore


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
    find_dag: FindDag,
    dag_id: str | None,
    feed: str,
    consumer: str,
    rows: Sequence[CursorRow],
    now: datetime,
    max_age: timedelta,
    left_out: datetime | None = None,
) -> list[Fault]:
    """
    Return why a consumer's DAG, or process, does not move its cursors.

    :param dag_id: that of its last run; None if no run is known.
    :param max_age: a consumer that has moved since is at work.
    :param left_out: begin of the first window that is not exported; None if it exports no windows.
    """
    where = f"feed {feed}, consumer {consumer}"
    last = max(rows, key=lambda row: row.moved_at, default=None)
    dag, found, unknown = None, [], []
    try:
        dag = find_dag(dag_id) if dag_id is not None else None
    except AirflowUnavailableError as problem:
        # That it is late is known, whatever became of its DAG.
        unknown.append(not_checked(where, f"the state of its DAG: {problem.what}", problem.remedy))
    if dag is not None and dag.is_paused:
        remedy = f"Unpause it: airflow dags unpause {shlex.quote(dag.dag_id)}"
        if left_out is not None:
            backfill = backfill_command(dag.dag_id, left_out, now)
            remedy += f". If its schedule does not catch up, backfill the runs that it left out: {backfill}"
        found.append(Fault(FaultKind.DAG_PAUSED, where, f"DAG {dag.dag_id} is paused", remedy))
    if dag is not None and dag.last_state == "failed":
        what = f"run {dag.last_run} of DAG {dag.dag_id}, its last run, failed"
        remedy = "Read the failed task's log, fix the cause, then clear the task"
        found.append(Fault(FaultKind.RUN_FAILED, where, what, remedy))
    if found or (last is not None and now - last.moved_at <= max_age):
        return [*unknown, *found]
    what = f"its cursor has not moved {'yet' if last is None else f'since {_move(last)}'}"
    # Without the command: who is woken by this must not paste what removes a consumer.
    drop = "drop the consumer if nobody needs it any more"
    remedy = f"Run its DAG or process again, or {drop}"
    if dag is not None and not dag.is_there:
        what = f"{what}, and Airflow no longer has DAG {dag.dag_id}"
        remedy = (
            "If the DAG runs in another Airflow, or the metadata database here is new, run this "
            "command where the DAG runs. Otherwise restore the DAG"
        )
    elif dag is not None and dag.last_run:
        what = f"{what}; run {dag.last_run} of DAG {dag.dag_id}, its last run, is {dag.last_state}"
        remedy = "Check that run, the DAG's schedule, and that a scheduler runs"
    return [*unknown, Fault(FaultKind.NO_RUN, where, what, remedy)]


def catching_up(feed: str, consumer: str, rows: Sequence[CursorRow]) -> Fault:
    """Return why a consumer is late whose cursors move, if nothing else was found: it has not caught up."""
    last = max(rows, key=lambda row: row.moved_at)
    what = f"no cause was found; its cursor last moved at {_move(last)}"
    leases = shell("leases", "--feed", feed)
    remedy = f"Check later that the cursor has moved. If it has not, list the holders: {leases}"
    return Fault(FaultKind.CATCHING_UP, f"feed {feed}, consumer {consumer}", what, remedy)


def _move(row: CursorRow) -> str:
    return format_time(row.moved_at) + (f", by {row.moved_by}" if row.moved_by else "")


def last_dag(source: CursorStore, feed: str, consumer: str, rows: Sequence[CursorRow]) -> str | None:
    """Return the DAG whose run moved one of a consumer's cursors last; people may have moved it since."""
    last = max(rows, key=lambda row: row.moved_at, default=None)
    dag_id = dag_of(last.moved_by) if last is not None else None
    if dag_id is None:
        ids = (dag_of(change.by) for change in source.history(feed, consumer))
        dag_id = next((each for each in ids if each is not None), None)
    return dag_id


def dag_of(name: str) -> str | None:
    """
    Return the DAG of a run's name, ``dag_id/run_id/task_id/try``; None for other names.

    A run that consumes has its process behind it, ``@host:process:...``, and is cut if it is long.
    """
    run, _, process = name.partition("@")
    is_run = re.fullmatch(r"[^/]+/[^/]+/[^/]+/[0-9]+", run) or (process and len(run) == LONGEST_RUN)
    dag_id, slash, _ = run.partition("/")
    return dag_id if is_run and slash else None


class VariableLister(VariableStore, Protocol):
    """Airflow's Variables, with a list of them."""

    def keys(self, prefix: str) -> list[str]:
        """Return the names of the Variables that begin with a prefix."""


def variable_faults(
    source: FeedSource,
    variables: VariableLister,
    feed: str,
    rows: Sequence[CursorRow],
    consumer: str | None,
    without: Collection[str] = (),
) -> list[Fault]:
    """
    Check the Variables of a feed's exports, including exports without rows.

    :param without: consumers that publish nothing.
    """
    consumers = dict.fromkeys(row.consumer for row in rows)
    if consumer is not None:
        consumers[consumer] = None
    else:
        database = source.identity().id
        consumers |= dict.fromkeys(name for name, of in published(variables, database).values() if of == feed)
    faults = []
    for each in (name for name in consumers if name not in without):
        fault = _variable(source, variables, feed, each)
        faults += [fault] if fault is not None else []
    return faults


def unknown_feeds(source: FeedSource, variables: VariableLister, feeds: Collection[str]) -> list[Fault]:
    """Find Variables of this database without a feed; those of other databases are not checked."""
    try:
        database = source.identity().id
    except FeedNotFoundError:
        return []
    return [
        Fault(
            FaultKind.VARIABLE_OF_NO_FEED,
            f"Variable {key}",
            f"the Variable belongs to consumer {consumer!r} of feed {feed!r}, which this database does "
            "not have",
            "If the feed was dropped for good, delete the Variable",
        )
        for key, (consumer, feed) in published(variables, database).items()
        if feed not in feeds
    ]


def published(variables: VariableLister, database: str) -> dict[str, tuple[str, str]]:
    """Return the consumer and feed of each Variable of a database, if they can be determined."""
    prefix, found = variable_prefix(database), {}
    for key in variables.keys(prefix):
        consumer, _, feed = key.removeprefix(prefix).partition(":")
        named = _names_in(variables.get(key))
        # An edit may have put another consumer in the value. The key has the names, unless it is a hash.
        for each in (named, (consumer, feed)):
            if all(each) and variable_key(database, *each) == key:
                found[key] = each
                break
    return found


def _names_in(text: str | None) -> tuple[str, str]:
    """Return the consumer and feed in a Variable's value; empty if there are none."""
    try:
        content = json.loads(text or "")
        return str(content["consumer"]), str(content["feed"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", ""


def _variable(source: FeedSource, variables: VariableLister, feed: str, consumer: str) -> Fault | None:
    key = variable_key(source.identity().id, consumer, feed)
    where = f"Variable {key}"
    _, publish = recovery_commands(consumer, feed)
    try:
        _, is_current = compare(source, variables, consumer, feed)
    except CursorEditedError as problem:
        return _edited(source, variables, feed, consumer, problem)
    except (CursorFormatError, UnsupportedVersionError) as problem:
        remedy = f"Overwrite it with the cursors in the database: {publish}"
        if isinstance(problem, UnsupportedVersionError):
            remedy = "Upgrade this package"
        # Without the commands, which are in the remedy.
        what = problem.facts.get("reason", problem.message)
        return Fault(FaultKind.VARIABLE_UNREADABLE, where, what, remedy)
    if is_current:
        return None
    remedy = f"Nothing to do: the next run of the export publishes the Variable. To publish it now: {publish}"
    if variables.get(key) is None:
        what = "the Variable does not exist, but the database has cursors of this consumer"
        return Fault(FaultKind.VARIABLE_MISSING, where, what, remedy)
    return Fault(
        FaultKind.VARIABLE_BEHIND, where, "the Variable is older than the cursors in the database", remedy
    )


def _edited(
    source: FeedSource, variables: VariableLister, feed: str, consumer: str, problem: CursorEditedError
) -> Fault:
    key = problem.facts["key"]
    if source.cursors(feed, consumer):
        what = "; ".join(problem.facts["problems"])
        remedy = f"No cursor moves until you decide. {problem.facts['remedy']}"
        return Fault(FaultKind.VARIABLE_EDITED, f"Variable {key}", what, remedy)
    shards = CursorDocument.from_json(variables.get(key) or "", key=key).shards
    return Fault(
        FaultKind.VARIABLE_ORPHANED,
        f"Variable {key}",
        f"the Variable has cursors of {counted(len(shards), 'shard')}, but the database has none of "
        f"consumer {consumer!r}",
        "If the consumer was dropped, delete the Variable. If its rows in the database are lost, "
        f"restore them from the Variable ({shell('cursor adopt', consumer, '--feed', feed)}) or from "
        f"the manifests ({rebuild_command(consumer, feed)})",
    )


_PAGE = 1_000


def whole_overview(source: FeedReader, feed: str) -> FeedOverview:
    """
    Return a feed at a glance, with all of its shards.

    :raises FeedNotFoundError: the database has no such feed.
    :raises FeedSetupError: one of the feed's tables is missing.
    """
    (found,) = source.overview([feed], shards=_PAGE)
    found.check()
    while len(found.shards) < found.shard_count:
        (more,) = source.overview([feed], first_shard=len(found.shards), shards=_PAGE)
        if not more.check().shards:
            break
        found = replace(found, shards=(*found.shards, *more.shards))
    return found


def judge_consumer(
    source: FeedReader, found: FeedOverview, consumer: str, rows: Sequence[CursorRow], now: datetime
) -> tuple[Verdict, datetime]:
    """Return what its cursors say of a consumer, and until when the feed is complete for it."""
    verdict = judge(of_overview(found, consumer, now, rows))
    return verdict, verdict.complete_until or first_event(source, found, consumer, now)


def beginning_fault(source: FeedSource, found: FeedOverview, consumer: str) -> Fault | None:
    """Return the fault of events before an export's beginning, with the command of a backfill."""
    if events_before(found, consumer) is None:
        return None
    feed = found.info.name
    grid = export_grids(source, feed, [consumer]).get(consumer)
    left_out = events_before(found, consumer, None if grid is None else grid.window_length)
    rows = [one.row for one in found.positions(consumer)]
    return None if left_out is None else left_out.fault(last_dag(source, feed, consumer, rows))


def first_event(source: FeedReader, found: FeedOverview, consumer: str, now: datetime) -> datetime:
    """Return the time of the first event that is not purged: a consumer that has nothing waits since then."""
    times, lost = [], found.lost_shards(consumer)
    for shard in found.shards:
        if shard.status.head is None and shard.shard in lost:
            # What it has lost is not known any more.
            times.append(Ulid.MIN.time)
        if shard.status.head is not None:
            try:
                # A page before the head orders nothing.
                page = source.read_feed(found.info.name, shard.shard, shard.status.purged_upto, 1)
            except PurgedError:
                times.append(shard.status.purged_upto.time)
            else:
                times += [event.ulid.time for event in page]
    return min(times, default=now)
