# SPDX-License-Identifier: Apache-2.0
"""The shards a consumer holds: request, renew, share with waiting consumers, release."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_changefeed.core.consumer import LONGEST_RUN
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import LeaseHeldError, storable
from airflow_changefeed.sources.base_leases import Grant

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_changefeed.sources.base import FeedSource

_RENEWALS_PER_LEASE = 3
#: Seconds that waiting consumers have to take released shards before this one requests them again.
_GRACE = 2.0
#: Lease durations for which no more shards are released after nobody took the last ones.
_PATIENCE = 6


def new_holder(by: str = "") -> str:
    """Return a unique name of a process, behind who consumes; servers keep 256 characters of it."""
    name = f"{socket.gethostname()[:60]}:{os.getpid()}:{Ulid.from_uuid(uuid.uuid4())}"
    return f"{storable(by, LONGEST_RUN)}@{name}" if by else name


@dataclass(frozen=True)
class Wanted:
    """
    The shards a process wants to hold.

    :param shards: None for all.
    :param at_most: maximum number; None for all.
    :param seconds: duration of a lease.
    :param by: who consumes, for people; empty for the process alone.
    """

    consumer: str
    feed: str
    shards: tuple[Shard, ...] | None
    at_most: int | None
    seconds: float
    by: str = ""


def holders(source: FeedSource, consumer: str, feed: str) -> list[str]:
    """Return who holds which shard of a consumer, and until when, for people."""
    now = source.now()
    return [
        f"shard {shard_text(one.shard)} by {one.holder} until {format_time(one.expires)}"
        for one in source.leases(feed)
        if one.consumer == consumer and one.holder is not None and one.expires and one.expires > now
    ]


class Holding:
    """
    The shards this process holds for a consumer.

    :param rows: their cursor rows as last read, with their fencing tokens.
    :param clock: seconds; only decides when to query the database again.
    """

    def __init__(self, source: FeedSource, wanted: Wanted, clock: Callable[[], float]) -> None:
        self._source = source
        self.wanted = wanted
        self.holder = new_holder(wanted.by)
        self.rows: dict[Shard, CursorRow] = {}
        self._clock = clock
        self._renewed_at = clock()
        self._gave_at: float | None = None
        self._keep_until = clock()

    @property
    def renew_every(self) -> float:
        """Seconds after which leases are renewed while nothing is consumed."""
        return self.wanted.seconds / _RENEWALS_PER_LEASE

    @property
    def is_due(self) -> bool:
        """Whether the leases are due for renewal."""
        return self._clock() - self._renewed_at >= self.renew_every

    def has(self, shard: Shard, token: int) -> bool:
        """Whether a shard is still held under the same fencing token."""
        row = self.rows.get(shard)
        return row is not None and row.fencing_token == token

    def missing(self, known: Iterable[Shard]) -> list[Shard]:
        """Return the further shards it wants to hold."""
        if self.wanted.at_most is not None and len(self.rows) >= self.wanted.at_most:
            return []
        wanted = known if self.wanted.shards is None else self.wanted.shards
        return [shard for shard in wanted if shard not in self.rows]

    def request(self, shards: Sequence[Shard]) -> Grant:
        """Request shards; those granted are held from now on."""
        wanted = self.wanted
        at_most = None if wanted.at_most is None else wanted.at_most - len(self.rows)
        grant = self._source.acquire_leases(
            wanted.consumer,
            wanted.feed,
            shards,
            holder=self.holder,
            seconds=wanted.seconds,
            at_most=at_most,
        )
        if not self.rows:
            self._renewed_at = self._clock()
        self.rows |= grant.rows
        return grant

    def renew(self) -> tuple[Grant, set[Shard]]:
        """Renew all leases; also returns the shards that were lost."""
        wanted = self.wanted
        self._renewed_at = self._clock()
        renewal = self._source.acquire_leases(
            wanted.consumer,
            wanted.feed,
            (),
            holder=self.holder,
            seconds=wanted.seconds,
            tokens=self._tokens(),
        )
        return renewal, self.forget(set(self.rows) - set(renewal.rows))

    def may_ask_again(self) -> bool:
        """
        Return whether to request shards that waiting consumers could take.

        After releasing some, waiting consumers get time to take them. If nobody does, for example because
        they want other shards, this consumer takes them again and releases none for a while.
        """
        if self._gave_at is None:
            return True
        if self._clock() - self._gave_at < max(_GRACE, self.renew_every):
            return False
        self._gave_at = None
        self._keep_until = self._clock() + _PATIENCE * self.wanted.seconds
        return True

    def to_share(self, renewal: Grant, busy: Collection[Shard]) -> list[Shard]:
        """Return the half of the shards to release to consumers that hold none."""
        half = len(self.rows) // 2
        if not renewal.waiting or not half or self._gave_at is not None or self._clock() < self._keep_until:
            return []
        return [shard for shard in reversed(list(self.rows)) if shard not in busy][:half]

    def give_back(self, shards: Sequence[Shard]) -> None:
        """Release shards to waiting consumers, and forget them."""
        self._leave(shards)
        self.forget(shards)
        self._gave_at = self._clock()

    def leave(self) -> None:
        """Release all shards and stop waiting."""
        self._leave(list(self.rows))
        self.rows.clear()

    def _leave(self, shards: Sequence[Shard]) -> None:
        tokens = {shard: token for shard, token in self._tokens().items() if shard in shards}
        self._source.release_leases(self.wanted.consumer, self.wanted.feed, tokens, holder=self.holder)

    def forget(self, shards: Iterable[Shard]) -> set[Shard]:
        """Stop holding shards; the database already knows, or the leases will expire."""
        gone = set(shards) & set(self.rows)
        for shard in gone:
            del self.rows[shard]
        return gone

    def _tokens(self) -> dict[Shard, int]:
        return {shard: row.fencing_token for shard, row in self.rows.items()}

    def held_elsewhere(self, seconds: float) -> LeaseHeldError:
        """Return the error after waiting without success."""
        wanted = self.wanted
        held = holders(self._source, wanted.consumer, wanted.feed)
        listed = shell("leases", "--consumer", wanted.consumer, "--feed", wanted.feed)
        return LeaseHeldError(
            f"consumer {wanted.consumer!r} of feed {wanted.feed!r}: other consumers still hold all shards "
            f"after {seconds:g} s ({'; '.join(held) or 'none is free'}). Wait longer (register_timeout), or "
            f"look who holds them: {listed}",
            consumer=wanted.consumer,
            feed=wanted.feed,
        )
