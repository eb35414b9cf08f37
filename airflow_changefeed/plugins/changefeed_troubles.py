# SPDX-License-Identifier: Apache-2.0
"""What somebody must resolve: gaps of a feed's capture, and dead letters of its consumers."""

from __future__ import annotations

import shlex
from itertools import groupby
from operator import attrgetter

from airflow_changefeed.core.capture import CaptureGap
from airflow_changefeed.core.consumer import DeadLetter
from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.times import format_known, format_time
from airflow_changefeed.cursors.cursors import CONN_ID, shell
from airflow_changefeed.exceptions import CaptureNotFoundError
from airflow_changefeed.hooks.changefeed_secrets import without_secrets
from airflow_changefeed.plugins.changefeed_rows import MayChange, Row, position
from airflow_changefeed.sources.base import FeedSource

#: Maximum number of gaps and dead letters to list; the others are only counted.
_SHOWN = 5
_REASON = 300


def troubles_of(source: FeedSource, feed: str, may_change: MayChange) -> Row:
    """
    Return a feed's open gaps, which stop its seal, and its open dead letters, which hold their windows open.

    :param may_change: takes consumer and feed. Only users who may move its cursors see why events failed,
        because the reason may contain data of the events.
    :raises FeedNotFoundError: the feed does not exist; terminal.
    """
    source.feed(feed)
    gaps = _open_gaps(source, feed)
    by_consumer = groupby(
        sorted(source.dead_letters(feed), key=attrgetter("consumer", "number")), key=attrgetter("consumer")
    )
    dead_letters = {consumer: list(found) for consumer, found in by_consumer}
    return {
        "gaps": {
            "count": len(gaps),
            "first": [_gap_row(gap) for gap in gaps[:_SHOWN]],
            "command": f"airflow-changefeed {shlex.join(('capture', 'resolve', feed))} {CONN_ID}",
        },
        "dead_letters": {
            consumer: {
                "count": len(found),
                "first": [
                    _dead_letter_row(one, with_reason=may_change(consumer, feed)) for one in found[:_SHOWN]
                ],
                "command": shell("dead-letters list --consumer", consumer, feed),
            }
            for consumer, found in dead_letters.items()
        },
    }


def _open_gaps(source: FeedSource, feed: str) -> list[CaptureGap]:
    try:
        return [gap for gap in source.capture_gaps(feed) if gap.resolved_at is None]
    except CaptureNotFoundError:
        return []


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
        "shard": shard_text(dead_letter.shard),
        "event": position(dead_letter.ulid),
        "state": dead_letter.state.value,
        "attempts": dead_letter.attempts,
        "parked_at": format_time(dead_letter.parked_at),
        "reason": without_secrets(dead_letter.reason)[:_REASON] if with_reason else None,
    }
