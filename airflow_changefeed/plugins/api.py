# SPDX-License-Identifier: Apache-2.0
"""What the page reads: its JSON API, at ``/changefeed/api``, guarded by Airflow's permissions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, HTTPException, Query, Request

from airflow_changefeed.core.feed import parse_shard
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import ChangefeedError
from airflow_changefeed.plugins.access import (
    Runs,
    may_backfill,
    may_change,
    may_change_variables,
    may_edit_connection,
    may_pause,
    reading,
)
from airflow_changefeed.plugins.connections import (
    MOST_BEHIND,
    ConnId,
    Uses,
    answer_timeout,
    ask_output,
    ask_source,
    message_of,
    sees_errors,
    words_of,
)
from airflow_changefeed.plugins.overview import Overview, waiting_of
from airflow_changefeed.plugins.rows import Row, change_row, shard_row, troubles_of
from airflow_changefeed.plugins.runs import backfill_dates, paused_dags
from airflow_changefeed.plugins.strips import Exports
from airflow_changefeed.plugins.tables import Lake, Place, begun_of, places_of
from airflow_changefeed.plugins.uses import Use, configured
from airflow_changefeed.plugins.windows import chart_of, window_of, windows_of
from airflow_changefeed.sources.base import FeedSource

#: Maximum number of shards in one response.
MOST_SHARDS = 500
#: Shards whose figures are summed up in a list of feeds.
SUMMED_SHARDS = 100

# The page requires it too; here it also protects the router if it is mounted elsewhere.
router = APIRouter(dependencies=[Depends(reading)])

First = Annotated[int, Query(ge=0, le=1_000_000_000)]


def exports_of(runs: Runs, uses: Uses, conn_id: ConnId) -> Exports:
    """Return the exports of a connection that the user may see."""
    return Exports(conn_id, [use for use in uses if use.conn_id == conn_id], runs)


OfConnection = Annotated[Exports, Depends(exports_of)]


@router.get("/connections")
def connections(user: GetUserDep, uses: Uses) -> Row:
    """Return the connections and the tasks that use them; opens no feed database."""
    by_conn: dict[str, list[Row]] = {conn_id: [] for conn_id in configured()}
    backfills: dict[str, bool] = {}
    paused = paused_dags({use.dag_id for use in uses})
    for use in uses:
        if use.dag_id not in backfills:
            backfills[use.dag_id] = may_backfill(user, use.dag_id)
        row = {
            **use.to_dict(),
            "may_backfill": backfills[use.dag_id],
            "may_pause": may_pause(user, use.dag_id),
            "is_paused": use.dag_id in paused,
        }
        by_conn.setdefault(use.conn_id, []).append(row)
    return {
        "user": user.get_name(),
        "may_create_consumers": may_change_variables(user),
        "timeout_seconds": answer_timeout(),
        "connections": [{"conn_id": conn_id, "uses": by_conn[conn_id]} for conn_id in sorted(by_conn)],
    }


@router.get("/feeds")
async def feeds(request: Request, user: GetUserDep, exports: OfConnection, conn_id: ConnId) -> Row:
    """Return a connection's feeds, those with troubles first; one that cannot be read has its error."""

    def question(source: FeedSource) -> Row:
        view = _overview(request, user, exports, source)
        names = [info.name for info in source.feeds()]
        rows = view.rows(source.overview(names, shards=SUMMED_SHARDS) if names else ())
        return {"at": format_time(view.now), "feeds": [*view.absent(names), *rows]}

    return await ask_source(conn_id, question)


@router.get("/feed")
async def one_feed(
    request: Request,
    user: GetUserDep,
    exports: OfConnection,
    conn_id: ConnId,
    feed: str,
    first: First = 0,
    count: Annotated[int, Query(ge=1, le=MOST_SHARDS)] = 25,
) -> Row:
    """Return a feed with a page of its shards and their cursors."""

    def question(source: FeedSource) -> Row:
        view = _overview(request, user, exports, source)
        # Its sums are those of the list, whatever page of shards is shown.
        read = max(SUMMED_SHARDS, min(first + count, MOST_SHARDS))
        (found,) = source.overview([feed], shards=read)
        (row,) = view.rows([replace(found.check(), shards=found.shards[:SUMMED_SHARDS])])
        page = found.shards[first : first + count]
        if first + count > read:
            page = source.overview([feed], first_shard=first, shards=count)[0].check().shards
        shards = [shard_row(one, view.now, conn_id, exports.run_names) for one in page]
        return {"at": format_time(view.now), "first": first, **row, "shards": shards}

    return await ask_source(conn_id, question)


@router.get("/reasons")
async def reasons(
    request: Request, user: GetUserDep, exports: OfConnection, conn_id: ConnId, feed: str
) -> Row:
    """Return the troubles of a feed, with the reasons that only a search of the database finds."""

    def question(source: FeedSource) -> Row:
        view = replace(_overview(request, user, exports, source), explains=True)
        (row,) = view.rows([source.overview([feed], shards=SUMMED_SHARDS)[0].check()])
        return {"troubles": row["troubles"]}

    return await ask_source(conn_id, question, most=MOST_BEHIND)


def _overview(request: Request, user: Any, exports: Exports, source: FeedSource) -> Overview:
    return Overview(
        source,
        exports,
        _allows(user, source),
        partial(message_of, request),
        partial(words_of, request),
        sees_errors=sees_errors(request),
    )


def _allows(user: Any, source: FeedSource) -> Callable[[str, str], bool]:
    # Read once, and only if there are consumers.
    database = cache(lambda: source.identity().id)
    return lambda consumer, feed: may_change(user, database(), consumer, feed)


@router.get("/waiting")
async def waiting(exports: OfConnection, conn_id: ConnId, feed: str, consumer: str) -> Row:
    """Return how many events wait for an export that has not run yet, since when, and its first backfill."""

    def question(source: FeedSource) -> Row:
        (found,) = source.overview([feed], shards=SUMMED_SHARDS)
        return waiting_of(source, exports.of(feed, consumer), exports, found.check())

    return await ask_source(conn_id, question, most=MOST_BEHIND)


@router.get("/waiters")
async def waiters(runs: Runs, conn_id: ConnId, feed: str) -> Row:
    """Return the processes that wait for a lease, by consumer."""

    def question(source: FeedSource) -> Row:
        found: dict[str, list[Row]] = {}
        for lease in source.leases(feed):
            found.setdefault(
                lease.consumer,
                [{"name": runs.shown(one.name), "since": format_time(one.since)} for one in lease.waiters],
            )
        return {"waiters": found}

    return await ask_source(conn_id, question)


@router.get("/troubles")
async def troubles(user: GetUserDep, conn_id: ConnId, feed: str) -> Row:
    """Return what somebody must resolve: gaps of a capture, and dead letters of consumers."""
    may_change_capture = may_edit_connection(user, conn_id)
    return await ask_source(
        conn_id,
        lambda source: troubles_of(
            source, conn_id, feed, _allows(user, source), may_change_capture=may_change_capture
        ),
    )


@router.get("/tables")
async def tables(request: Request, exports: OfConnection, conn_id: ConnId, feed: str) -> Row:
    """Return snapshots, states and current tables of a capture; each place has a time limit of its own."""

    def question(source: FeedSource) -> tuple[str, datetime, list[Row]]:
        now = source.now()
        return source.identity().id, now, begun_of(source, conn_id, feed, now, exports.run_names)

    database, now, begun = await ask_source(conn_id, question)

    async def look(place: Place) -> Row:
        lake = Lake(place, feed, database, now, partial(message_of, request), exports.run_names)
        try:
            found = await ask_output(place.shown, lake.to_dict)
        except (ChangefeedError, OSError) as error:
            found = {"error": message_of(request, error)}
        tasks = [{"dag_id": use.dag_id, "task_id": use.task_id} for use in place.tasks]
        return {"path": place.shown, "tasks": tasks, **found}

    places = places_of(exports.uses, feed)
    return {"at": format_time(now), "begun": begun, "places": await asyncio.gather(*map(look, places))}


@router.get("/history")
async def history(runs: Runs, conn_id: ConnId, feed: str, consumer: str, shard: str | None = None) -> Row:
    """Return the newest changes of a consumer's cursors, newest first."""

    def question(source: FeedSource) -> Row:
        chosen = None if shard is None else parse_shard(shard)
        found = source.history(feed, consumer, shard=chosen, limit=50)
        return {"changes": [change_row(one, runs) for one in found]}

    return await ask_source(conn_id, question)


def exporting(uses: Uses, conn_id: ConnId, dag_id: str, task_id: str) -> Use:
    """Return a task with windows that the user may see; 404 if it does not exist."""
    for use in uses:
        if (use.conn_id, use.dag_id, use.task_id) == (conn_id, dag_id, task_id) and use.has_windows:
            return use
    raise HTTPException(
        404, f"DAG {dag_id!r} has no task {task_id!r} with an output that is known before the task runs"
    )


Exporting = Annotated[Use, Depends(exporting)]


@router.get("/windows")
async def windows(
    exports: OfConnection, use: Exporting, end: datetime | None = None, at: datetime | None = None
) -> Row:
    """Return the calendar of what a task exports."""
    return await ask_source(use.conn_id, lambda source: windows_of(source, use, exports, end, at))


@router.get("/window")
async def window(exports: OfConnection, use: Exporting, at: datetime) -> Row:
    """Return one window of what a task exports, with its manifests."""
    return await ask_source(use.conn_id, lambda source: window_of(source, use, exports, at))


@router.get("/chart")
async def chart(exports: OfConnection, use: Exporting, start: datetime, end: datetime) -> Row:
    """Return rows and lag of the windows in a time."""
    return await ask_source(use.conn_id, lambda source: chart_of(source, use, exports, start, end))


@router.get("/backfill")
def backfill(
    user: GetUserDep,
    uses: Uses,
    dag_id: str,
    start: datetime,
    end: datetime,
    unit_seconds: Annotated[float | None, Query(ge=1, le=1e8)] = None,
) -> Row:
    """Return the runs for a missing time; the page starts them through Airflow's own API."""
    if dag_id not in {use.dag_id for use in uses}:
        raise HTTPException(404, f"DAG {dag_id!r} not found, or the DAG exports no feed")
    if not may_backfill(user, dag_id):
        raise HTTPException(403, f"You do not have permission to run DAG {dag_id!r}")
    unit = None if unit_seconds is None else timedelta(seconds=unit_seconds)
    return backfill_dates(dag_id, start, end, unit)
