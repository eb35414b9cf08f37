# SPDX-License-Identifier: Apache-2.0
"""The protocol of cursors: where consumers stand, and who may move them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.frontier import Frontier
from airflow_changefeed.core.ulid import Ulid


@dataclass(frozen=True)
class CursorMove:
    """
    A change of one cursor row, made only if the row still is as its reader saw it.

    :param frontier: the row's new frontier.
    :param expected_version: the resource version that was seen.
    :param lease_token: the mover's grant; an older one is refused.
    :param ack: inclusive; what the consumer no longer needs. None leaves it; it never goes back.
    """

    shard: Shard
    frontier: Frontier
    expected_version: int
    lease_token: int
    ack: Ulid | None = None


class CursorStore(Protocol):
    """One row per consumer, feed and shard, changed by compare-and-set only (Hasura's resourceVersion)."""

    def cursors(self, feed: str, consumer: str | None = None) -> list[CursorRow]:
        """Return the rows of a feed, of one consumer or of all."""

    def begin_consumer(
        self, consumer: str, feed: str, starts: Mapping[Shard, Ulid], *, by: str
    ) -> list[CursorRow]:
        """
        Make sure that a consumer has a row for each shard.

        :param starts: where the consumer begins, exclusive. A row that exists keeps its place, except that
            one which has completed nothing yet may begin earlier (``Frontier.begin_at``).
        :return: all rows of the consumer and feed.
        """

    def take_lease(
        self, consumer: str, feed: str, shards: Sequence[Shard], *, holder: str, seconds: float
    ) -> dict[Shard, int]:
        """
        Take the lease of all shards or of none.

        :param seconds: until it runs out, by the database's clock.
        :return: a lease token for each shard, higher than every one granted before.
        :raises LeaseHeldError: somebody else holds one that has not run out; transient.
        """

    def release_lease(self, consumer: str, feed: str, tokens: Mapping[Shard, int]) -> None:
        """Give leases back; a token that is no longer the newest is left alone."""

    def move_cursors(
        self, consumer: str, feed: str, moves: Sequence[CursorMove], *, by: str
    ) -> list[CursorRow]:
        """
        Change rows, all in one transaction or none; each change bumps its resource version.

        :return: all rows of the consumer and feed, after the change.
        :raises StaleVersionError: a row was changed since it was read; carries the present row; terminal.
        :raises LeaseLostError: a lease token is not the newest, or ran out; transient.
        :raises CursorBeyondFeedError: a frontier lies beyond the shard's clock; terminal.
        """

    def drop_consumer(self, consumer: str, feed: str) -> None:
        """Forget a consumer's rows, which frees what it held back from purging."""
