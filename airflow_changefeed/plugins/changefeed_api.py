# SPDX-License-Identifier: Apache-2.0
"""The page's JSON API, at ``/changefeed/api``, guarded by Airflow's permissions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Annotated, Any

from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.api_fastapi.logging.decorators import action_logging
from fastapi import APIRouter, Body, Depends, HTTPException, Query

from airflow_changefeed.core.consumer import MAX_REASON, parse_position
from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.core.feed import parse_shard
from airflow_changefeed.core.times import format_time
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.plugins.changefeed_access import (
    may_backfill,
    may_change,
    may_see_runs,
    reading,
    same_origin,
)
from airflow_changefeed.plugins.changefeed_connections import ConnId, Uses, ask_source
from airflow_changefeed.plugins.changefeed_moves import make_move, plan_move, revoke
from airflow_changefeed.plugins.changefeed_rows import Row, change_row, feed_row, shard_row
from airflow_changefeed.plugins.changefeed_troubles import troubles_of
from airflow_changefeed.plugins.changefeed_uses import configured
from airflow_changefeed.plugins.changefeed_windows import backfill_dates, windows_of
from airflow_changefeed.sources.base import FeedSource

#: Maximum number of feeds and of shards in one response.
MOST_FEEDS, MOST_SHARDS = 100, 500
#: Shards whose figures are summed up in a list of feeds.
SUMMED_SHARDS = 100
_NO_VERSION = "{} is missing; pass the one that you saw, so that later changes are not overwritten"

# The page requires it too; here it also protects the router if it is mounted elsewhere.
router = APIRouter(dependencies=[Depends(reading)])

First = Annotated[int, Query(ge=0, le=1_000_000_000)]


@router.get("/connections")
def connections(user: GetUserDep, uses: Uses) -> Row:
    """Return the connections and the tasks that use them; opens no feed database."""
    by_conn: dict[str, list[Row]] = {conn_id: [] for conn_id in configured()}
    backfills: dict[str, bool] = {}
    for use in uses:
        if use.dag_id not in backfills:
            backfills[use.dag_id] = may_backfill(user, use.dag_id)
        row = {**use.to_dict(), "may_backfill": backfills[use.dag_id]}
        by_conn.setdefault(use.conn_id, []).append(row)
    return {
        "user": user.get_name(),
        "connections": [{"conn_id": conn_id, "uses": by_conn[conn_id]} for conn_id in sorted(by_conn)],
    }


@router.get("/feeds")
async def feeds(
    user: GetUserDep,
    conn_id: ConnId,
    first: First = 0,
    count: Annotated[int, Query(ge=1, le=MOST_FEEDS)] = 25,
) -> Row:
    """Return a page of a connection's feeds, each with totals."""

    def question(source: FeedSource) -> Row:
        allows = _allows(user, source)
        names = [info.name for info in source.feeds()]
        found = source.overview(names[first : first + count], shards=SUMMED_SHARDS)
        now = source.now()
        return {
            "at": format_time(now),
            "total": len(names),
            "first": first,
            "feeds": [feed_row(one, allows, now) for one in found],
        }

    return await ask_source(conn_id, question)


@router.get("/feed")
async def one_feed(
    user: GetUserDep,
    conn_id: ConnId,
    feed: str,
    first: First = 0,
    count: Annotated[int, Query(ge=1, le=MOST_SHARDS)] = 25,
) -> Row:
    """Return a feed with a page of its shards and their cursors."""

    def question(source: FeedSource) -> Row:
        (found,) = source.overview([feed], first_shard=first, shards=count)
        now = source.now()
        return {
            "at": format_time(now),
            "first": first,
            **feed_row(found, _allows(user, source), now),
            "shards": [shard_row(one, now) for one in found.shards],
        }

    return await ask_source(conn_id, question)


def _allows(user: Any, source: FeedSource) -> Callable[[str, str], bool]:
    # Read once, and only if there are consumers.
    database = cache(lambda: source.identity().id)
    return lambda consumer, feed: may_change(user, database(), consumer, feed)


async def changing(user: GetUserDep, conn_id: ConnId, feed: str, consumer: str) -> None:
    """
    Require permission to change a consumer.

    :raises HTTPException: 403 without it.
    """
    database = await ask_source(conn_id, lambda source: source.identity().id)
    if not may_change(user, database, consumer, feed):
        raise HTTPException(
            403,
            "You have read-only access to cursors. To change them you need Airflow's permission to edit the "
            f"Variable {variable_key(database, consumer, feed)}",
        )


@router.get("/waiters")
async def waiters(conn_id: ConnId, feed: str) -> Row:
    """Return the processes that wait for a lease, by consumer."""

    def question(source: FeedSource) -> Row:
        found: dict[str, list[Row]] = {}
        for lease in source.leases(feed):
            found.setdefault(
                lease.consumer,
                [{"name": one.name, "since": format_time(one.since)} for one in lease.waiters],
            )
        return {"waiters": found}

    return await ask_source(conn_id, question)


@router.get("/troubles")
async def troubles(user: GetUserDep, conn_id: ConnId, feed: str) -> Row:
    """Return what somebody must resolve: gaps of a capture, and dead letters of consumers."""
    return await ask_source(conn_id, lambda source: troubles_of(source, feed, _allows(user, source)))


@router.get("/history")
async def history(conn_id: ConnId, feed: str, consumer: str, shard: str | None = None) -> Row:
    """Return the newest changes of a consumer's cursors, newest first."""

    def question(source: FeedSource) -> Row:
        chosen = None if shard is None else parse_shard(shard)
        found = source.history(feed, consumer, shard=chosen, limit=50)
        return {"changes": [change_row(one) for one in found]}

    return await ask_source(conn_id, question)


@router.get("/windows")
async def windows(
    user: GetUserDep, uses: Uses, conn_id: ConnId, dag_id: str, task_id: str, end: datetime | None = None
) -> Row:
    """Return the calendar of what a task exports."""
    use = next(
        (one for one in uses if (one.conn_id, one.dag_id, one.task_id) == (conn_id, dag_id, task_id)), None
    )
    if use is None or not use.has_windows:
        raise HTTPException(
            404, f"DAG {dag_id!r} has no task {task_id!r} with an output that is known before it runs"
        )
    return await ask_source(
        conn_id, lambda source: windows_of(source, use, end, with_runs=may_see_runs(user, dag_id))
    )


@router.get("/backfill")
def backfill(user: GetUserDep, uses: Uses, dag_id: str, start: datetime, end: datetime) -> Row:
    """Return the logical dates of a backfill; the page starts it through Airflow's own API."""
    if dag_id not in {use.dag_id for use in uses}:
        raise HTTPException(404, f"DAG {dag_id!r} not found, or it does not export a feed")
    if not may_backfill(user, dag_id):
        raise HTTPException(403, f"You do not have permission to start backfills of DAG {dag_id!r}")
    return backfill_dates(dag_id, start, end)


@router.get("/move", dependencies=[Depends(changing)])
async def planned_move(
    conn_id: ConnId, feed: str, consumer: str, shard: str, to: str, resource_version: int | None = None
) -> Row:
    """Return the effect of a move; changes nothing."""
    version = _named(resource_version, "resource_version")
    destination = parse_position(to.strip())
    return await ask_source(
        conn_id, lambda source: plan_move(source, consumer, feed, parse_shard(shard), destination, version)
    )


Changes = [Depends(same_origin), Depends(changing)]


@router.post("/move", dependencies=[*Changes, Depends(action_logging(event="changefeed_move_cursor"))])
async def move(
    user: GetUserDep,
    conn_id: ConnId,
    feed: str,
    consumer: str,
    shard: str,
    to: Annotated[str, Body()],
    resource_version: Annotated[int | None, Body()] = None,
    why: Annotated[str, Body(max_length=MAX_REASON - 10)] = "",
) -> Row:
    """Move a cursor, if it has not changed since the user saw it."""
    version = _named(resource_version, "resource_version")
    destination = parse_position(to.strip())
    hook, by = ChangefeedHook(conn_id), user.get_name()

    def question(source: FeedSource) -> Row:
        chosen = (consumer, feed, parse_shard(shard))
        return make_move(source, hook.variables(), chosen, destination, version, by=by, why=why)

    return await ask_source(conn_id, question)


@router.post("/revoke", dependencies=[*Changes, Depends(action_logging(event="changefeed_revoke_lease"))])
async def revoked(
    conn_id: ConnId,
    feed: str,
    consumer: str,
    shard: str,
    fencing_token: Annotated[int | None, Body(embed=True)] = None,
) -> Row:
    """Revoke a lease, if it is still the one that the user saw."""
    token = _named(fencing_token, "fencing_token")
    return await ask_source(conn_id, lambda source: revoke(source, consumer, feed, parse_shard(shard), token))


def _named(version: int | None, name: str) -> int:
    if version is None:
        raise HTTPException(428, _NO_VERSION.format(name))
    return version
