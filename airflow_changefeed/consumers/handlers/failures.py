# SPDX-License-Identifier: Apache-2.0
"""Failure counts of events, taken from the invocation log so that they survive a restart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """
    Counts the attempts at each event and creates the log entries.

    :param clock: seconds that never go back.
    """

    def __init__(self, source: FeedSource, feed: str, consumer: str, clock: Callable[[], float]) -> None:
        self._source = source
        self._feed = feed
        self._consumer = consumer
        self._clock = clock
        self._failed: dict[Shard, dict[Ulid, int]] = {}
        # By the database's clock, without a query per event.
        self._begun, self._begun_at = clock(), source.now()

    def now(self) -> datetime:
        """Return the estimated current time of the database."""
        return floor_to_millisecond(self._begun_at + timedelta(seconds=self._clock() - self._begun))

    def number(self, events: Sequence[FeedEvent]) -> int:
        """Return the number of the next attempt, from 1."""
        first = events[0]
        if first.shard not in self._failed:
            self._failed[first.shard] = self._load(first.shard)
        return self._failed[first.shard].get(first.id, 0) + 1

    def _load(self, shard: Shard) -> dict[Ulid, int]:
        found: dict[Ulid, int] = {}
        for entry in self._source.invocations(self._feed, self._consumer, shard=shard, limit=_ENTRIES):
            attempt = entry.attempt
            if attempt.outcome is Outcome.FAILED:
                found[attempt.first] = max(found.get(attempt.first, 0), attempt.number)
        return found

    def forget(self, shard: Shard) -> None:
        """Recount from the log: another consumer may have tried meanwhile."""
        self._failed.pop(shard, None)

    def failed(self, events: Sequence[FeedEvent]) -> None:
        """Count a failed attempt once it is in the log."""
        number = self.number(events)
        self._failed[events[0].shard][events[0].id] = number

    def done(self, events: Sequence[FeedEvent]) -> None:
        """Forget earlier failures of events that are now consumed."""
        self._failed.get(events[0].shard, {}).pop(events[0].id, None)

    def attempt(
        self, events: Sequence[FeedEvent], started_at: datetime, error: BaseException | None = None
    ) -> Attempt:
        """Return the log entry of an attempt; with an error, a failed one."""
        return Attempt(
            first=events[0].id,
            last=events[-1].id,
            events=len(events),
            number=self.number(events),
            started_at=started_at,
            outcome=Outcome.CONSUMED if error is None else Outcome.FAILED,
            error=None if error is None else described(error, MAX_REASON),
        )
