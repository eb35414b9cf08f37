# SPDX-License-Identifier: Apache-2.0
"""What somebody must resolve, and its resolution: gaps of a feed's capture, dead letters of its consumers."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from fastapi import HTTPException

from airflow_changefeed.consumers.dead_letters import check_events
from airflow_changefeed.core.capture import CaptureGap, CaptureInfo
from airflow_changefeed.core.consumer import DeadLetter, DeadLetterState
from airflow_changefeed.core.fault import shell, with_conn_id
from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.times import format_known, format_time
from airflow_changefeed.exceptions import CaptureNotFoundError, StaleVersionError
from airflow_changefeed.hooks.changefeed_secrets import without_secrets
from airflow_changefeed.plugins.views.rows import MayChange, Row, position
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_versions import stale

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
    if not known[number].state.is_open:
        raise _resolved(known[number], version)
    if state is DeadLetterState.RETRY:
        check_events(source, [known[number]])
    found = source.resolve_dead_letter(number, state, by=by, note=note, resource_version=version)
    return _dead_letter_row(found, with_reason=True)


def _resolved(dead_letter: DeadLetter, version: int) -> StaleVersionError:
    """Return the error for one that somebody else has resolved: what the user saw is not current."""
    return stale(
        f"dead letter {dead_letter.number} of consumer {dead_letter.consumer!r}, feed {dead_letter.feed!r}",
        version,
        dead_letter.resource_version,
        f"{dead_letter.state.value} by {dead_letter.resolved_by}",
    )


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
