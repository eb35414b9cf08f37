# SPDX-License-Identifier: Apache-2.0
"""Look whether feeds have news for consumers; the one way behind the sensor, and behind its trigger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_changefeed.core.feed import Shard, check_known_shards, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.base import FeedReader, News, Peek


@dataclass(frozen=True)
class Watch:
    """
    What somebody waits for.

    :param shards: None for all.
    :param window_end: exclusive end of the window that is waited for; None waits for news alone.
    """

    feed: str
    consumer: str
    shards: Sequence[Shard] | None = None
    window_end: datetime | None = None


@dataclass(frozen=True)
class Outlook:
    """
    What a look at a feed found.

    :param news: the shards with events beyond the consumer's cursor, in the feed or waiting in the outbox.
    :param after: the consumer's cursors, exclusive; a shard left out has none, or never had an event.
    :param has_ended: whether the window asked about is over, by the database's clock; False without a window.
    """

    news: dict[Shard, News]
    after: dict[Shard, Ulid]
    has_ended: bool

    @property
    def is_ready(self) -> bool:
        """Whether there is something to export: news, or a window that nothing can come into any more."""
        return bool(self.news) or self.has_ended

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the news as JSON values: shard to ``after``, ``head`` (None: in the outbox), ``outbox``."""
        return {
            shard_text(shard): {
                "after": str(self.after.get(shard, Ulid.MIN)),
                "head": str(news.head) if news.head is not None else None,
                "outbox": news.has_outbox,
            }
            for shard, news in sorted(self.news.items(), key=lambda item: shard_text(item[0]))
        }


def look(
    source: FeedReader,
    feed: str,
    consumer: str,
    shards: Sequence[Shard] | None = None,
    window_end: datetime | None = None,
) -> Outlook:
    """
    Look for news without writing: one statement for all shards, at a cost that does not grow with the feed.

    :param shards: None for all.
    :param window_end: exclusive end of the window that is waited for; None waits for news alone.
    :raises FeedNotFoundError: the database has no such feed; terminal.
    :raises ShardNotFoundError: a shard that never had an event was named, and its window has ended; terminal.
    """
    (found,) = look_for_all(source, [Watch(feed, consumer, shards, window_end)])
    if isinstance(found, Exception):
        raise found
    return found


def look_for_all(source: FeedReader, watches: Sequence[Watch]) -> list[Outlook | Exception]:
    """
    Look for the news of many by one question, as :func:`look` does for one.

    :return: what was found, or what :func:`look` would raise, in the order of the watches.
    :raises ConnectionNotUsableError: there is no way into the database; terminal.
    :raises SourceUnavailableError: the database did not answer; transient.
    """
    known: dict[str, list[Shard]] = {}

    def shards_of(feed: str) -> list[Shard]:
        if feed not in known:
            known[feed] = [status.shard for status in source.shards(feed)]
        return known[feed]

    peeks = source.peek_many([(watch.feed, watch.consumer) for watch in watches])
    return [_outlook(watch, found, shards_of) for watch, found in zip(watches, peeks, strict=True)]


def _outlook(
    watch: Watch, found: Peek | Exception, shards_of: Callable[[str], list[Shard]]
) -> Outlook | Exception:
    if isinstance(found, Exception):
        return found
    news, shards = found.news, watch.shards
    has_ended = watch.window_end is not None and found.at >= watch.window_end
    if shards is not None:
        news = {shard: one for shard, one in news.items() if shard in shards}
        if has_ended and not news and not set(shards) <= set(found.shards):
            try:
                # Asked again, as a peek passes over shards that somebody holds locked.
                check_known_shards(watch.feed, shards, shards_of(watch.feed), "wait for")
            except Exception as error:
                return error
    return Outlook(news, found.after, has_ended)
