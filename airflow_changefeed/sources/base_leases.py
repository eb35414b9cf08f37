# SPDX-License-Identifier: Apache-2.0
"""Leases, and their protocol: which process may move a cursor."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.exceptions import InvalidArgumentError

#: Seconds of a year: the longest a lease may last.
MAX_LEASE = 366 * 86_400


@dataclass(frozen=True)
class Grant:
    """
    The leases that a process has after it acquired or extended some.

    :param rows: of the shards that it holds by this call, with their fencing tokens and cursors.
    :param asked_at: when it asked, by the database's clock.
    :param free_at: when the first of the others' leases on the requested shards expires; None if there are
        no others.
    :param waiting: number of other processes that wait and hold no shard.
    :param has_retries: whether a person wants dead letters to be tried again.
    """

    rows: Mapping[Shard, CursorRow]
    asked_at: datetime
    free_at: datetime | None = None
    waiting: int = 0
    has_retries: bool = False

    @property
    def tokens(self) -> dict[Shard, int]:
        """The fencing token of each shard."""
        return {shard: row.fencing_token for shard, row in self.rows.items()}

    @property
    def free_in(self) -> float:
        """Seconds from the request on until the first of the others' leases expires; infinity if none."""
        return math.inf if self.free_at is None else (self.free_at - self.asked_at).total_seconds()


@dataclass(frozen=True)
class Waiter:
    """A process that waits for a lease. ``since``: when it first asked."""

    name: str
    since: datetime


@dataclass(frozen=True)
class LeaseInfo:
    """
    Who holds a shard for a consumer, and who waits.

    :param holder: None if the shard is not held.
    :param since: when it was granted; None without a holder, and for a lease of an export.
    :param expires: by the database's clock; the holder keeps an expired lease until another process asks.
    :param waiters: of the consumer, for any shard; longest waiting first.
    """

    consumer: str
    feed: str
    shard: Shard
    token: int
    holder: str | None
    since: datetime | None
    expires: datetime | None
    waiters: tuple[Waiter, ...] = ()


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
        :raises ConsumerNotFoundError: the consumer does not exist; without ``all_or_none``.
        :raises LeaseHeldError: another holder's lease has not expired; with ``all_or_none``.
        :raises ShardNotFoundError: a shard has no row; with ``all_or_none``.
        """

    def release_leases(self, consumer: str, feed: str, tokens: Mapping[Shard, int], *, holder: str) -> None:
        """Release the holder's leases, and stop waiting; a token that is no longer the newest is ignored."""

    def revoke_lease(self, consumer: str, feed: str, shard: Shard, *, fencing_token: int) -> None:
        """
        Revoke a lease; its holder can no longer commit.

        :param fencing_token: of the lease to revoke.
        :raises StaleVersionError: the lease is not the newest, or was released; nothing was changed.
        :raises ShardNotFoundError: the consumer has no cursor for that shard.
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
