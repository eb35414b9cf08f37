# SPDX-License-Identifier: Apache-2.0
"""Polls: whether feeds have new events for consumers. Both the sensor and its trigger ask here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_changefeed.core.feed import Shard, check_known_shards, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.base import FeedReader, FeedStatus, NewEvents


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
    return poll_result(source, source.poll(feed, consumer), feed, shards, window_end)


def poll_result(
    source: FeedReader,
    found: FeedStatus,
    feed: str,
    shards: Sequence[Shard] | None = None,
    window_end: datetime | None = None,
) -> PollResult:
    """Say of a poll's status what :func:`poll` says, and raise as it does."""
    new_events = found.new_events
    has_ended = window_end is not None and found.at >= window_end
    if shards is not None:
        new_events = {shard: one for shard, one in new_events.items() if shard in shards}
        if has_ended and not new_events and not set(shards) <= set(found.shards):
            # Read again, because a poll skips shards that are locked.
            known = [status.shard for status in source.shards(feed)]
            check_known_shards(feed, shards, known, "wait for")
    return PollResult(new_events, found.after, has_ended)
