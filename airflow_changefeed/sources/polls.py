# SPDX-License-Identifier: Apache-2.0
"""Many who ask for news of a few feeds: each feed is looked at once, and each of them gets their answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    What one look at a feed found for several consumers.

    :param at: the database's clock, read before all else.
    :param shards: each that ever had an event, with its last event in the feed and whether rows wait.
    :param cursors: of the consumers that have any.
    """

    at: datetime
    shards: Sequence[tuple[Shard, Ulid | None, bool]]
    cursors: Mapping[str, Mapping[Shard, Ulid]]

    def poll(self, consumer: str | None) -> FeedStatus:
        """Return what it means for one of them."""
        after = self.cursors.get(consumer, {}) if consumer is not None else {}
        return FeedStatus.of(self.at, [(*shard, after.get(shard[0])) for shard in self.shards])


#: Looks at feeds, each with the consumers whose cursors are wanted, and answers for each feed.
PollFeeds = Callable[[Mapping[str, Sequence[str]]], Mapping[str, FeedPoll | Exception]]


def answer(asks: Sequence[Ask], poll: PollFeeds) -> list[FeedStatus | Exception]:
    """
    Answer all who ask, from one look at each feed.

    :return: in the order of asking; a name that no consumer can have is refused for that one alone.
    """
    refused: dict[str, InvalidArgumentError] = {}
    wanted: dict[str, dict[str, None]] = {}
    for feed, consumer in asks:
        if consumer is None:
            wanted.setdefault(feed, {})
            continue
        try:
            check_consumer(consumer)
        except InvalidArgumentError as error:
            refused[consumer] = error
        else:
            wanted.setdefault(feed, {})[consumer] = None
    polls = poll({feed: list(consumers) for feed, consumers in wanted.items()}) if wanted else {}

    def one(feed: str, consumer: str | None) -> FeedStatus | Exception:
        if consumer in refused:
            return refused[consumer]
        found = polls[feed]
        return found if isinstance(found, Exception) else found.poll(consumer)

    return [one(feed, consumer) for feed, consumer in asks]


def only(answers: Sequence[FeedStatus | Exception]) -> FeedStatus:
    """Return the one answer, or raise it."""
    (found,) = answers
    if isinstance(found, Exception):
        raise found
    return found
