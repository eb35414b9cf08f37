# SPDX-License-Identifier: Apache-2.0
"""How often events failed already: counted from the log of invocations, so that a restart forgets nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from airflow_changefeed.consumers.events.event import FeedEvent
from airflow_changefeed.core.consumer import MAX_REASON, Attempt, Outcome
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.times import floor_to_millisecond
from airflow_changefeed.core.ulid import Ulid

if TYPE_CHECKING:
    from airflow_changefeed.sources.base import FeedSource

#: Newest entries of a shard's log in which failures of its next event are looked for.
_ENTRIES = 100


class Attempts:
    """
    Counts the attempts at each event, and makes the entries of the log.

    :param clock: seconds that never go back.
    """

    def __init__(self, source: FeedSource, feed: str, consumer: str, clock: Callable[[], float]) -> None:
        self._source = source
        self._feed = feed
        self._consumer = consumer
        self._clock = clock
        self._failed: dict[Shard, dict[Ulid, int]] = {}
        # By the database's clock, without asking it for each event.
        self._begun, self._begun_at = clock(), source.now()

    def now(self) -> datetime:
        """Return the database's present time, as far as it is known here."""
        return floor_to_millisecond(self._begun_at + timedelta(seconds=self._clock() - self._begun))

    def number(self, events: Sequence[FeedEvent]) -> int:
        """Return the number of the attempt that is to come; 1 for the first one."""
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
        """Count anew from the log: another one may have tried meanwhile."""
        self._failed.pop(shard, None)

    def failed(self, events: Sequence[FeedEvent]) -> None:
        """Count an attempt that failed, once the log has it."""
        number = self.number(events)
        self._failed[events[0].shard][events[0].id] = number

    def done(self, events: Sequence[FeedEvent]) -> None:
        """Forget what failed before and was consumed now."""
        self._failed.get(events[0].shard, {}).pop(events[0].id, None)

    def attempt(
        self, events: Sequence[FeedEvent], started_at: datetime, error: BaseException | None = None
    ) -> Attempt:
        """Return the entry of an attempt; with an error it failed."""
        return Attempt(
            first=events[0].id,
            last=events[-1].id,
            events=len(events),
            number=self.number(events),
            started_at=started_at,
            outcome=Outcome.CONSUMED if error is None else Outcome.FAILED,
            error=None if error is None else reason(error),
        )


def reason(error: BaseException) -> str:
    """Return what an error says, as it is kept for people."""
    return f"{type(error).__name__}: {error}"[:MAX_REASON]
