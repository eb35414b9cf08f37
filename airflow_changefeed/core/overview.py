# SPDX-License-Identifier: Apache-2.0
"""A feed at one glance: its shards, what waits in them, and where its consumers stand."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_changefeed.core.consumer import ConsumerInfo
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import FeedInfo, Shard, ShardStatus

#: Events or rows that an overview counts, at most; who has more is told to have so many "or more".
COUNTED = 10_000


@dataclass(frozen=True)
class ConsumerPosition:
    """
    Where a consumer stands in a shard.

    :param behind: events in the feed beyond its cursor, at most ``COUNTED``.
    """

    row: CursorRow
    behind: int


@dataclass(frozen=True)
class ShardOverview:
    """
    A shard and its consumers.

    :param waiting: committed rows in the outbox, at most ``COUNTED``; 0 for serialized writers.
    """

    status: ShardStatus
    waiting: int
    consumers: tuple[ConsumerPosition, ...]

    @property
    def shard(self) -> Shard:
        """The shard."""
        return self.status.shard


@dataclass(frozen=True)
class FeedOverview:
    """
    A feed.

    :param shards: those asked for, in their order: numbers ascending, UUIDs by text.
    :param shard_count: how many there are of them all.
    :param consumers: of events; exports' have no settings and are found in the shards alone.
    """

    info: FeedInfo
    shards: tuple[ShardOverview, ...]
    shard_count: int
    consumers: tuple[ConsumerInfo, ...] = ()
