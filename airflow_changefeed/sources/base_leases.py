# SPDX-License-Identifier: Apache-2.0
"""The protocol of leases: which process may move a cursor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from airflow_changefeed.core.consumer import Grant, LeaseInfo
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.exceptions import InvalidArgumentError

#: Seconds of a year: the longest a lease may last.
MAX_LEASE = 366 * 86_400


class LeaseStore(Protocol):
    """Leases of consumers and exports. A shard of either has at most one holder at a time (ADR 0008)."""

    def acquire_leases(
        self,
        consumer: str,
        feed: str,
        shards: Sequence[Shard],
        *,
        holder: str,
        seconds: float,
        tokens: Mapping[Shard, int] | None = None,
        at_most: int | None = None,
        all_or_none: bool = False,
    ) -> Grant:
        """
        Acquire leases, and extend those that the holder has.

        A lease in ``tokens`` keeps its token if that is still the newest, even if the lease has expired; if
        it is lost, it is not acquired again, and missing in the result. The leases of other ``shards`` get a
        new token, higher than all earlier ones, also where the lease already is the holder's own.

        Without ``all_or_none`` only a consumer's leases can be acquired, and only those that are free: never
        granted, released or expired. A shard without a row begins where the consumer's later shards do, or at
        its end if its high-water time is lower. A holder without any lease is registered as waiting for
        ``seconds`` after each request; one with a lease no longer waits.

        :param shards: to acquire; empty only extends.
        :param holder: a name unique among processes.
        :param seconds: until they expire, by the database's clock.
        :param tokens: fencing tokens of the leases to extend.
        :param at_most: maximum number to acquire, those that the holder already has first; None for all.
        :param all_or_none: acquire all of ``shards``, which must have rows, or raise; for exports, and for a
            person's change.
        :raises ConsumerNotFoundError: the consumer does not exist; without ``all_or_none``; terminal.
        :raises LeaseHeldError: another holder's lease has not expired; with ``all_or_none``; transient.
        :raises ShardNotFoundError: a shard has no row; with ``all_or_none``; terminal.
        """

    def release_leases(self, consumer: str, feed: str, tokens: Mapping[Shard, int], *, holder: str) -> None:
        """Release the holder's leases, and stop waiting; a token that is no longer the newest is ignored."""

    def revoke_lease(self, consumer: str, feed: str, shard: Shard, *, fencing_token: int) -> None:
        """
        Revoke a lease; its holder can no longer commit.

        :param fencing_token: of the lease to revoke.
        :raises StaleVersionError: the lease is not the newest, or was released; nothing was changed;
            terminal.
        :raises ShardNotFoundError: the consumer has no cursor for that shard; terminal.
        """

    def leases(self, feed: str | None = None) -> list[LeaseInfo]:
        """Return the shards of all consumers, including exports, with holders and waiters."""


def check_lease(seconds: float, at_most: int | None, *, all_or_none: bool) -> None:
    """Raise InvalidArgumentError for an invalid duration of a lease, or a limit where all are wanted."""
    if all_or_none and at_most is not None:
        raise InvalidArgumentError(
            "at_most cannot be given with all_or_none, which acquires every shard: leave out one of the two",
            at_most=at_most,
        )
    if not 0 < seconds <= MAX_LEASE:
        raise InvalidArgumentError(
            f"a lease must last more than 0 and at most {MAX_LEASE} seconds, not {seconds}"
        )
