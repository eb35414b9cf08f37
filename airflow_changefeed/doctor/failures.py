# SPDX-License-Identifier: Apache-2.0
"""Checks of events that consumers could not handle: dead letters, and those at which a consumer stands."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_changefeed.core.consumer import ConsumerInfo, Invocation, OnPoison, Outcome
from airflow_changefeed.core.fault import Fault, FaultKind, park_command, shell
from airflow_changefeed.core.feed import Shard, counted, shard_text
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.doctor.cursors import FeedState
from airflow_changefeed.sources.base import FeedSource

#: Characters to show of the reason of a dead letter.
_REASON = 200
#: Newest log entries of a consumer that are looked at.
_ENTRIES = 100


def dead_letter_faults(state: FeedState) -> Iterator[Fault]:
    """Find open dead letters."""
    for consumer in dict.fromkeys(dead_letter.consumer for dead_letter in state.dead_letters):
        own = [dead_letter for dead_letter in state.dead_letters if dead_letter.consumer == consumer]
        first = min(own, key=lambda dead_letter: dead_letter.ulid)
        purged = {status.shard: status.purged_upto for status in state.shards}
        gone = sum(one.ulid <= purged.get(one.shard, Ulid.MIN) for one in own)
        lost = f". The events of {gone} of them were purged, so those can only be dropped" if gone else ""
        is_or_are, their = ("is", "Its event is") if len(own) == 1 else ("are", "Their events are")
        yield Fault(
            FaultKind.DEAD_LETTER,
            f"feed {state.feed}, consumer {consumer}",
            f"{counted(len(own), 'dead letter')} {is_or_are} open, the first of "
            f"{format_time(first.ulid.time)} in shard {shard_text(first.shard)} ({first.reason[:_REASON]}). "
            f"{their} not consumed, and the purge waits for that as long as the feed's max_hold allows{lost}",
            "List them, then retry or drop each: "
            f"{shell('dead-letters list', '--consumer', consumer, '--feed', state.feed)}",
        )


def failing_faults(source: FeedSource, state: FeedState) -> list[Fault]:
    """
    Find consumers of events whose last attempt in a shard failed, at an event that they have not passed.

    The error itself is not shown: it may contain data of the event.
    """
    cursors = {(row.consumer, row.shard): row.ulid for row in state.rows}
    faults = []
    for consumer, info in state.consumers.items():
        newest: dict[Shard, Invocation] = {}
        for entry in source.invocations(state.feed, consumer, limit=_ENTRIES):
            newest.setdefault(entry.shard, entry)
        faults += [
            _failing(info, entry)
            for shard, entry in newest.items()
            if entry.attempt.outcome is Outcome.FAILED
            and entry.attempt.first > cursors.get((consumer, shard), info.begin)
        ]
    return faults


def _failing(info: ConsumerInfo, entry: Invocation) -> Fault:
    spec, attempt = info.spec, entry.attempt
    is_spent = spec.max_attempts is not None and attempt.number >= spec.max_attempts
    stops = is_spent and spec.on_poison is OnPoison.STOP
    end = ", and the consumer stops there (max_attempts, on_poison=stop)" if stops else ""
    log = shell("consumer log", spec.consumer, "--feed", spec.feed, "--failed")
    return Fault(
        FaultKind.CONSUMER_FAILING,
        f"feed {spec.feed}, shard {shard_text(entry.shard)}, consumer {spec.consumer}",
        f"its handler failed {counted(attempt.number, 'time')} at event {attempt.first} "
        f"({format_time(attempt.first.time)}), last at {format_time(entry.ended_at)}{end}",
        f"Read why: {log}; then mend the handler or the data and run the consumer again. To set this one "
        f"event aside: {park_command(spec.consumer, spec.feed)}",
    )
