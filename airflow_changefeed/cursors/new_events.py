# SPDX-License-Identifier: Apache-2.0
"""Polls: whether feeds have new events for consumers. Both the sensor and its trigger ask here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_changefeed.core.feed import Shard, check_known_shards, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.base import FeedReader, FeedStatus, NewEvents


@dataclass(frozen=True)
class Watch:
    """
    What a sensor waits for.

    :param shards: None for all.
    :param window_end: exclusive end of the window that is waited for; None waits for new events alone.
    """

    feed: str
    consumer: str
    shards: Sequence[Shard] | None = None
    window_end: datetime | None = None


@dataclass(frozen=True)
class PollResult:
    """
    What a poll of a feed found.

    :param new_events: by shard, where events are beyond the consumer's cursor, in the feed or the outbox.
    :param after: the consumer's cursors, exclusive; a shard left out has none, or never had an event.
    :param has_ended: whether the window asked about is over, by the database's clock; False without a window.
    """

    new_events: dict[Shard, NewEvents]
    after: dict[Shard, Ulid]
    has_ended: bool

    @property
    def is_ready(self) -> bool:
        """Whether there is something to export: new events, or a window that is over."""
        return bool(self.new_events) or self.has_ended

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return JSON values: shard to ``after``, ``head`` (None: in the outbox), ``outbox``."""
        return {
            shard_text(shard): {
                "after": str(self.after.get(shard, Ulid.MIN)),
                "head": str(new_events.head) if new_events.head is not None else None,
                "outbox": new_events.has_outbox,
            }
            for shard, new_events in sorted(self.new_events.items(), key=lambda item: shard_text(item[0]))
        }


def poll(
    source: FeedReader,
    feed: str,
    consumer: str,
    shards: Sequence[Shard] | None = None,
    window_end: datetime | None = None,
) -> PollResult:
    """
    Poll for new events without writing: one statement for all shards, whose cost does not grow with the feed.

    :param shards: None for all.
    :param window_end: exclusive end of the window that is waited for; None waits for new events alone.
    :raises FeedNotFoundError: the database has no such feed.
    :raises ShardNotFoundError: a given shard never had an event, and its window has ended.
    """
    (found,) = poll_many(source, [Watch(feed, consumer, shards, window_end)])
    if isinstance(found, Exception):
        raise found
    return found


def poll_many(source: FeedReader, watches: Sequence[Watch]) -> list[PollResult | Exception]:
    """
    Poll for the new events of many consumers at once, as :func:`poll` does for one.

    :return: what was found, or what :func:`poll` would raise, in the order of the watches.
    :raises ConnectionNotUsableError: there is no way into the database.
    :raises SourceUnavailableError: the database did not answer.
    """
    known: dict[str, list[Shard]] = {}

    def shards_of(feed: str) -> list[Shard]:
        if feed not in known:
            known[feed] = [status.shard for status in source.shards(feed)]
        return known[feed]

    statuses = source.poll_many([(watch.feed, watch.consumer) for watch in watches])
    return [_poll_result(watch, found, shards_of) for watch, found in zip(watches, statuses, strict=True)]


def _poll_result(
    watch: Watch, found: FeedStatus | Exception, shards_of: Callable[[str], list[Shard]]
) -> PollResult | Exception:
    if isinstance(found, Exception):
        return found
    new_events, shards = found.new_events, watch.shards
    has_ended = watch.window_end is not None and found.at >= watch.window_end
    if shards is not None:
        new_events = {shard: one for shard, one in new_events.items() if shard in shards}
        if has_ended and not new_events and not set(shards) <= set(found.shards):
            try:
                # Read again, because a poll skips shards that are locked.
                check_known_shards(watch.feed, shards, shards_of(watch.feed), "wait for")
            except Exception as error:
                return error
    return PollResult(new_events, found.after, has_ended)
