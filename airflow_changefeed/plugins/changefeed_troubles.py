# SPDX-License-Identifier: Apache-2.0
"""What a feed waits for a person to resolve: gaps of its capture, and events that its consumers parked."""

from __future__ import annotations

import shlex
from itertools import groupby
from operator import attrgetter

from airflow_changefeed.core.capture import CaptureGap
from airflow_changefeed.core.consumer import DeadLetter
from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.cursors.cursors import CONN_ID, shell
from airflow_changefeed.exceptions import CaptureNotFoundError
from airflow_changefeed.plugins.changefeed_rows import MayChange, Row, place, time
from airflow_changefeed.plugins.changefeed_uses import without_secrets
from airflow_changefeed.sources.base import FeedSource

#: Gaps and letters that are told one by one, at most; of all the number is told.
_SHOWN = 5
_REASON = 300


def troubles_of(source: FeedSource, feed: str, may_change: MayChange) -> Row:
    """
    Return a feed's open gaps, which stop its seal, and its open dead letters, which hold their windows open.

    :param may_change: of consumer and feed: who may move its cursors is told why its events failed, as the
        reason may quote what stands in them.
    :raises FeedNotFoundError: there is no such feed; terminal.
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
            "command": f"airflow changefeed {shlex.join(('capture', 'resolve', feed))} {CONN_ID}",
        },
        "dead_letters": {
            consumer: {
                "count": len(found),
                "first": [
                    _dead_letter_row(one, is_told=may_change(consumer, feed)) for one in found[:_SHOWN]
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
        "found_at": time(gap.found_at),
        "after": time(gap.after),
    }


def _dead_letter_row(dead_letter: DeadLetter, *, is_told: bool) -> Row:
    return {
        "number": dead_letter.number,
        "shard": shard_text(dead_letter.shard),
        "event": place(dead_letter.ulid),
        "state": dead_letter.state.value,
        "attempts": dead_letter.attempts,
        "parked_at": time(dead_letter.parked_at),
        "reason": without_secrets(dead_letter.reason)[:_REASON] if is_told else None,
    }
