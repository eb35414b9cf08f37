# SPDX-License-Identifier: Apache-2.0
"""Many polls of a few feeds: each feed is looked at once, and each poll gets its own answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_changefeed.core.cursor import check_consumer
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import InvalidArgumentError
from airflow_changefeed.sources.base import Ask, FeedStatus


@dataclass(frozen=True)
class FeedPoll:
    """
    Result of one poll of a feed for several consumers.

    :param at: the database's clock, read first.
    :param shards: each that ever had an event, with its last event in the feed and whether rows are
        waiting.
    :param cursors: of the consumers that have cursors.
    """

    at: datetime
    shards: Sequence[tuple[Shard, Ulid | None, bool]]
    cursors: Mapping[str, Mapping[Shard, Ulid]]

    def poll(self, consumer: str | None) -> FeedStatus:
        """Return the result for one of them."""
        after = self.cursors.get(consumer, {}) if consumer is not None else {}
        return FeedStatus.of(self.at, [(*shard, after.get(shard[0])) for shard in self.shards])


def wanted_of(asks: Sequence[Ask]) -> dict[str, list[str]]:
    """Return each feed to poll, with the consumers whose cursors are wanted."""
    wanted: dict[str, dict[str, None]] = {}
    for feed, consumer in asks:
        if consumer is None:
            wanted.setdefault(feed, {})
        elif _refusal(consumer) is None:
            wanted.setdefault(feed, {})[consumer] = None
    return {feed: list(consumers) for feed, consumers in wanted.items()}


def answers(asks: Sequence[Ask], polls: Mapping[str, FeedPoll | Exception]) -> list[FeedStatus | Exception]:
    """
    Answer all polls with one poll per feed of :func:`wanted_of`.

    :return: in the given order; an invalid consumer name fails only its own poll.
    """
    found: list[FeedStatus | Exception] = []
    for feed, consumer in asks:
        refusal = _refusal(consumer) if consumer is not None else None
        one = polls[feed] if refusal is None else refusal
        found.append(one if isinstance(one, Exception) else one.poll(consumer))
    return found


def _refusal(consumer: str) -> InvalidArgumentError | None:
    try:
        check_consumer(consumer)
    except InvalidArgumentError as error:
        return error
    return None


def only(found: Sequence[FeedStatus | Exception]) -> FeedStatus:
    """Return a single result, or raise it."""
    (one,) = found
    if isinstance(one, Exception):
        raise one
    return one
