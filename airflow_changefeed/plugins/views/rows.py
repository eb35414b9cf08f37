# SPDX-License-Identifier: Apache-2.0
"""Feeds, consumers and cursors as the JSON values of the page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.consumer import COUNTED, ConsumerPosition, FeedOverview, ShardOverview
from airflow_changefeed.core.cursor import CursorChange, CursorRow, lost_remedy
from airflow_changefeed.core.fault import with_conn_id
from airflow_changefeed.core.feed import ShardStatus, max_hold_text, shard_text
from airflow_changefeed.core.times import format_known, format_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.cursors.move_plan import PlannedMove
from airflow_changefeed.plugins.changefeed_access import RunNames

Row = dict[str, Any]
MayChange = Callable[[str, str], bool]
Strip = Callable[[FeedOverview, str], Row]
Words = Callable[[Exception], str]


def feed_row(found: FeedOverview, may_change: MayChange, now: datetime, strip: Strip, words: Words) -> Row:
    """
    Return a feed with the totals of the shards in the overview; without consumers if it could not be read.

    :param may_change: takes consumer and feed; whether the user may move its cursors.
    :param strip: takes the overview and a consumer; how it does at one look.
    :param words: of an error, as the user may read it.
    """
    shards = found.shards
    heads = [one.status.head for one in shards if one.status.head is not None]
    waiting = sum(one.waiting for one in shards)
    return {
        "feed": found.info.name,
        "kind": found.info.kind.value,
        "resource_version": found.info.resource_version,
        "time_tolerance_seconds": found.info.time_tolerance.total_seconds(),
        "max_hold": max_hold_text(found.info.max_hold),
        "shard_count": found.shard_count,
        "shards_counted": len(shards),
        "head": position(max(heads, default=None)),
        "sealed_until": format_known(found.info.sealed_until),
        "waiting": waiting,
        "waiting_or_more": any(one.waiting >= COUNTED for one in shards),
        "open_gaps": None if found.gaps is None else len(found.gaps),
        "problem": None if found.problem is None else words(found.problem),
        "consumers": [
            {**consumer_row(name, found, may_change, now), **strip(found, name)}
            for name in (_consumers(found) if found.problem is None else ())
        ],
    }


def _consumers(found: FeedOverview) -> list[str]:
    named = {info.spec.consumer for info in found.consumers}
    return sorted(named | {position.row.consumer for one in found.shards for position in one.consumers})


def consumer_row(name: str, found: FeedOverview, may_change: MayChange, now: datetime) -> Row:
    """Return a consumer with the totals of its cursors in the shards of the overview."""
    settings = next((info for info in found.consumers if info.spec.consumer == name), None)
    own = [
        (one, position) for one in found.shards for position in one.consumers if position.row.consumer == name
    ]
    lags = [position.row.lag(one.status.head) for one, position in own]
    return {
        "consumer": name,
        "is_of_events": settings is not None,
        "resource_version": settings.resource_version
        if settings
        else sum(position.row.resource_version for _, position in own),
        "cursors": len(own),
        "behind": sum(position.behind for _, position in own),
        "behind_or_more": any(position.behind >= COUNTED for _, position in own),
        # None: a cursor is at the start of a shard that has events.
        "lag_seconds": None if None in lags else max((seconds for seconds in lags if seconds), default=0.0),
        "held": sum(position.row.is_held(now) for _, position in own),
        "lost": len(found.lost_shards(name)),
        "may_change": may_change(name, found.info.name),
    }


def shard_row(found: ShardOverview, now: datetime, conn_id: str, runs: RunNames) -> Row:
    """Return a shard with its cursors."""
    status = found.status
    return {
        "shard": shard_text(status.shard),
        "high_water": format_time(status.high_water),
        "head": position(status.head),
        "sealed_until": format_known(status.sealed_until),
        "purged_upto": position(status.purged_upto),
        "waiting": found.waiting,
        "waiting_or_more": found.waiting >= COUNTED,
        "cursors": [_position_row(position, status, now, conn_id, runs) for position in found.consumers],
    }


def _position_row(
    position: ConsumerPosition, status: ShardStatus, now: datetime, conn_id: str, runs: RunNames
) -> Row:
    row = position.row
    is_lost = row.is_lost(status.purged_upto)
    return {
        **cursor_row(row, now, runs),
        "is_lost": is_lost,
        "remedy": with_conn_id(lost_remedy(row.consumer, row.feed, row.shard), conn_id) if is_lost else None,
        "behind": position.behind,
        "behind_or_more": position.behind >= COUNTED,
        "lag_seconds": row.lag(status.head),
    }


def cursor_row(row: CursorRow, now: datetime, runs: RunNames) -> Row:
    """Return a cursor."""
    plain = encode(row)
    del plain["frontier"], plain["ack"]
    return {
        **plain,
        "moved_by": runs.shown(row.moved_by),
        "lease_holder": runs.shown(row.lease_holder),
        "cursor": position(row.ulid),
        "ahead": len(row.frontier.ahead),
        "lease_is_held": row.is_held(now),
    }


def change_row(change: CursorChange, runs: RunNames) -> Row:
    """Return an entry of a cursor's history."""
    return {
        **encode(change),
        "before": position(change.before),
        "after": position(change.after),
        "by": runs.shown(change.by),
    }


def move_row(move: PlannedMove) -> Row:
    """Return the effect of a move."""
    return {
        "shard": shard_text(move.shard),
        "from": position(move.row.ulid),
        "to": position(move.target),
        "is_back": move.target < move.row.ulid,
        "again": move.again,
        "skipped": move.skipped,
        "skips_purged": move.skips_purged,
        "forgotten": len(move.forgotten),
        "resource_version": move.row.resource_version,
    }


def position(ulid: Ulid | None) -> Row | None:
    """Return a ULID and its time; None for the start of a feed, where there is no event."""
    if ulid is None or ulid == Ulid.MIN:
        return None
    return {"ulid": str(ulid), "time": format_time(ulid.time)}
