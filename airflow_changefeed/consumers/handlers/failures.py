# SPDX-License-Identifier: Apache-2.0
"""Failure counts of events, taken from the invocation log so that they survive a restart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_changefeed.consumers.events.event import FeedEvent
from airflow_changefeed.core.consumer import MAX_REASON, Attempt, Outcome
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.times import floor_to_millisecond
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import described

if TYPE_CHECKING:
    from airflow_changefeed.sources.base import FeedSource

#: Newest log entries of a shard that are searched for failures of its next event.
_ENTRIES = 100


class Attempts:
    """Counts the attempts at each event and creates the log entries."""

    def __init__(self, source: FeedSource, feed: str, consumer: str, clock: Callable[[], float]) -> None:
        self._source = source
        self._feed = feed
        self._consumer = consumer
        self._clock = clock
        #: With the fencing token of the lease under which they were counted.
        self._failed: dict[Shard, tuple[int, dict[Ulid, int]]] = {}
        # By the database's clock, without a query per event.
        self._begun, self._begun_at = clock(), source.now()

    def now(self) -> datetime:
        """Return the estimated current time of the database."""
        return floor_to_millisecond(self._begun_at + timedelta(seconds=self._clock() - self._begun))

    def next(self, events: Sequence[FeedEvent], token: int) -> Attempt:
        """Return the log entry of the next attempt at events, as it is if the attempt succeeds."""
        first = events[0]
        number = self._counts(first.shard, token).get(first.id, 0) + 1
        return Attempt(first.id, events[-1].id, len(events), number, self.now())

    def failed(self, shard: Shard, token: int, attempt: Attempt) -> None:
        """Count a failed attempt once it is in the log."""
        self._counts(shard, token)[attempt.first] = attempt.number

    def done(self, shard: Shard, token: int, attempt: Attempt) -> None:
        """Forget the failures of events that are now consumed."""
        self._counts(shard, token).pop(attempt.first, None)

    def _counts(self, shard: Shard, token: int) -> dict[Ulid, int]:
        """Return the failures of each event; under a new lease from the log, as others may have tried."""
        known, counts = self._failed.get(shard, (None, {}))
        if known != token:
            counts = self._load(shard)
            self._failed[shard] = (token, counts)
        return counts

    def _load(self, shard: Shard) -> dict[Ulid, int]:
        found: dict[Ulid, int] = {}
        for entry in self._source.invocations(self._feed, self._consumer, shard=shard, limit=_ENTRIES):
            attempt = entry.attempt
            if attempt.outcome is Outcome.FAILED:
                found[attempt.first] = max(found.get(attempt.first, 0), attempt.number)
        return found


def ended(attempt: Attempt, outcome: Outcome, error: BaseException) -> Attempt:
    """Return the log entry of an attempt that did not succeed."""
    return replace(attempt, outcome=outcome, error=described(error, MAX_REASON))
