# SPDX-License-Identifier: Apache-2.0
"""The protocol of cursors: where consumers stand, and who may move them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from airflow_changefeed.core.cursor import CursorChange, CursorRow
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.frontier import Frontier
from airflow_changefeed.core.ulid import Ulid


@dataclass(frozen=True)
class CursorMove:
    """
    A change of one cursor row, made only if the row still is as its reader saw it.

    :param frontier: the row's new frontier.
    :param expected_version: the resource version that was seen.
    :param fencing_token: the mover's grant; an older one is refused.
    :param ack: inclusive; what the consumer no longer needs. None leaves it; it never goes back.
    :param is_rewind: a person's move, which may go back: the ack then stands where ``ack`` says, also below
        where it was, so that no purge takes what the consumer is to see again. Refused below what was purged.
    """

    shard: Shard
    frontier: Frontier
    expected_version: int
    fencing_token: int
    ack: Ulid | None = None
    is_rewind: bool = False


class CursorStore(Protocol):
    """One row per consumer, feed and shard, changed by compare-and-set only (Hasura's resourceVersion)."""

    def cursors(self, feed: str, consumer: str | None = None) -> list[CursorRow]:
        """Return the rows of a feed, of one consumer or of all."""

    def begin_consumer(
        self, consumer: str, feed: str, starts: Mapping[Shard, Ulid], *, by: str, why: str | None = None
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
        :return: a fencing token for each shard, higher than every one granted before.
        :raises LeaseHeldError: somebody else holds one that has not run out; transient.
        """

    def release_lease(self, consumer: str, feed: str, tokens: Mapping[Shard, int]) -> None:
        """Give leases back; a token that is no longer the newest is left alone."""

    def move_cursors(
        self, consumer: str, feed: str, moves: Sequence[CursorMove], *, by: str, why: str | None = None
    ) -> list[CursorRow]:
        """
        Change rows, all in one transaction or none; each change bumps its resource version.

        Each leaves an entry in the history, in the same transaction.

        :param why: what was done, and a person's own words, at most 2,000 characters; None where a program
            moves on as it does.
        :return: all rows of the consumer and feed, after the change.
        :raises StaleVersionError: a row was changed since it was read; carries the present row; terminal.
        :raises LeaseLostError: a fencing token is not the newest, or ran out; transient.
        :raises CursorBeyondFeedError: a frontier lies beyond the shard's high-water time; terminal.
        :raises PurgedError: a rewind goes below what was purged; terminal.
        """

    def history(
        self, feed: str, consumer: str, *, shard: Shard | None = None, limit: int = 100
    ) -> list[CursorChange]:
        """
        Return the newest changes of a consumer's cursors, newest first.

        Of each shard the newest ``KEPT_CHANGES`` are kept. The steps of consumers of events are in their log
        of invocations instead; here is what persons changed of them.

        :param shard: None for all.
        """

    def revoke_lease(self, consumer: str, feed: str, shard: Shard, *, fencing_token: int) -> None:
        """
        Take a lease away from its holder: nothing it does under it is written any more.

        :param fencing_token: of the grant that was seen.
        :raises StaleVersionError: another grant is the newest, or nobody holds it any more; nothing was
            changed; terminal.
        :raises ShardNotFoundError: the consumer has no cursor for that shard; terminal.
        """

    def drop_consumer(self, consumer: str, feed: str, *, resource_version: int | None = None) -> None:
        """
        Forget a consumer's rows, history and settings, which frees what it held back from purging.

        :param resource_version: of what was seen: of a consumer of events that of its settings, of an
            export's consumer the sum of its rows'. None drops it however it is.
        :raises StaleVersionError: it was changed since; nothing was dropped; terminal.
        """
