# SPDX-License-Identifier: Apache-2.0
"""Feeds, consumers, cursors and what somebody must resolve, as the JSON values of the page."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

from fastapi import HTTPException

from airflow_changefeed.connections.connection import without_secrets
from airflow_changefeed.consumers.settings import check_events
from airflow_changefeed.core.capture import CaptureGap, CaptureInfo
from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.consumer import (
    COUNTED,
    ConsumerPosition,
    DeadLetter,
    DeadLetterState,
    ShardOverview,
)
from airflow_changefeed.core.cursor import CursorChange, CursorRow, lost_remedy
from airflow_changefeed.core.fault import shell, with_conn_id
from airflow_changefeed.core.feed import ShardStatus, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_known, format_time
from airflow_changefeed.cursors.move_plan import PlannedMove
from airflow_changefeed.exceptions import CaptureNotFoundError
from airflow_changefeed.plugins.access import RunNames
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_control import stale

Row = dict[str, Any]
MayChange = Callable[[str, str], bool]


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


#: Maximum number of gaps and dead letters to list; the others are only counted.
_SHOWN = 5
_REASON = 300


def troubles_of(
    source: FeedSource, conn_id: str, feed: str, may_change: MayChange, *, may_change_capture: bool
) -> Row:
    """
    Return a feed's capture and open gaps, which stop its seal, and its open dead letters, which hold their
    windows open.

    :param may_change_capture: whether the user may refresh the capture and resolve its gaps.
    :param may_change: takes consumer and feed. Only users who may move its cursors see why events failed,
        because the reason may contain data of the events.
    :raises FeedNotFoundError: the feed does not exist.
    """
    source.feed(feed)
    capture = _capture(source, feed)
    gaps = capture.gaps if capture is not None else ()
    by_consumer = groupby(
        sorted(source.dead_letters(feed), key=attrgetter("consumer", "number")), key=attrgetter("consumer")
    )
    dead_letters = {consumer: list(found) for consumer, found in by_consumer}
    return {
        "capture": capture and capture_row(capture, conn_id, feed, may_change=may_change_capture),
        "gaps": {
            "count": len(gaps),
            "first": [_gap_row(gap) for gap in gaps[:_SHOWN]],
            "command": with_conn_id(shell("capture resolve", feed, "--note", "..."), conn_id),
        },
        "dead_letters": {
            consumer: {
                "count": len(found),
                "first": [
                    _dead_letter_row(one, with_reason=may_change(consumer, feed)) for one in found[:_SHOWN]
                ],
                "command": with_conn_id(
                    shell("dead-letters list", "--consumer", consumer, "--feed", feed), conn_id
                ),
            }
            for consumer, found in dead_letters.items()
        },
    }


def capture_row(capture: CaptureInfo, conn_id: str, feed: str, *, may_change: bool) -> Row:
    """Return the capture of a feed."""
    return {
        "is_enabled": capture.is_enabled,
        "tables": [table.table for table in capture.spec.tables],
        "on_ddl": capture.spec.on_ddl.value,
        "drift": list(capture.drift),
        "resource_version": capture.resource_version,
        "may_change": may_change,
        "command": with_conn_id(shell("capture refresh", feed), conn_id),
    }


def _capture(source: FeedSource, feed: str) -> CaptureInfo | None:
    try:
        return source.capture(feed)
    except CaptureNotFoundError:
        return None


def resolve_dead_letter(
    source: FeedSource,
    consumer: str,
    feed: str,
    number: int,
    state: DeadLetterState,
    version: int,
    *,
    by: str,
    note: str | None,
) -> Row:
    """
    Retry or drop a dead letter of a consumer.

    :param version: resource version of the dead letter that the user saw.
    :raises StaleVersionError: it has changed since; nothing was changed.
    :raises PurgedError: it cannot be retried, because its event was purged.
    :raises HTTPException: 404: the consumer has no such dead letter.
    """
    known = {one.number: one for one in source.dead_letters(feed, consumer, is_open=False)}
    if number not in known:
        raise HTTPException(404, f"Consumer {consumer!r} of feed {feed!r} has no dead letter {number}")
    present = known[number]
    if not present.state.is_open:
        # Somebody else has resolved it: what the user saw is not current.
        raise stale(
            f"dead letter {number} of consumer {consumer!r}, feed {feed!r}",
            version,
            present.resource_version,
            f"{present.state.value} by {present.resolved_by}",
        )
    if state is DeadLetterState.RETRY:
        check_events(source, [present])
    found = source.resolve_dead_letter(number, state, by=by, note=note, resource_version=version)
    return _dead_letter_row(found, with_reason=True)


def _gap_row(gap: CaptureGap) -> Row:
    return {
        "number": gap.number,
        "table": gap.table,
        "reason": gap.reason,
        "found_at": format_time(gap.found_at),
        "after": format_known(gap.after),
    }


def _dead_letter_row(dead_letter: DeadLetter, *, with_reason: bool) -> Row:
    return {
        "number": dead_letter.number,
        "resource_version": dead_letter.resource_version,
        "shard": shard_text(dead_letter.shard),
        "event": position(dead_letter.ulid),
        "state": dead_letter.state.value,
        "attempts": dead_letter.attempts,
        "parked_at": format_time(dead_letter.parked_at),
        "reason": without_secrets(dead_letter.reason)[:_REASON] if with_reason else None,
    }
