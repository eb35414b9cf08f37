# SPDX-License-Identifier: Apache-2.0
"""Which shards a consumer holds: asking for them, prolonging, sharing with those who wait, giving back."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_changefeed.core.consumer import Grant, Renewal
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import LeaseHeldError

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_changefeed.sources.base import FeedSource

_RENEWALS_PER_LEASE = 3
#: Seconds that those who wait have for taking what was given back, before it is asked for again.
_GRACE = 2.0
#: Leases' lengths for which nothing more is given after nobody took what was.
_PATIENCE = 6


def new_holder() -> str:
    """Return a name that no other process, and no other consumer of this one, has."""
    return f"{socket.gethostname()[:60]}:{os.getpid()}:{Ulid.from_uuid(uuid.uuid4())}"


@dataclass(frozen=True)
class Wanted:
    """
    What a process wants to hold.

    :param shards: None for all that there are.
    :param at_most: how many of them; None for all.
    :param seconds: for which leases are taken.
    """

    consumer: str
    feed: str
    shards: tuple[Shard, ...] | None
    at_most: int | None
    seconds: float


class Holding:
    """
    The shards that this process holds for a consumer.

    :param rows: their cursor rows as they were last seen, with their fencing tokens.
    :param clock: seconds; says only when to ask the database again.
    """

    def __init__(self, source: FeedSource, wanted: Wanted, clock: Callable[[], float]) -> None:
        self._source = source
        self.wanted = wanted
        self.holder = new_holder()
        self.rows: dict[Shard, CursorRow] = {}
        self._clock = clock
        self._renewed_at = clock()
        self._gave_at: float | None = None
        self._keep_until = clock()

    @property
    def renew_every(self) -> float:
        """Seconds after which leases are prolonged, while nothing is consumed."""
        return self.wanted.seconds / _RENEWALS_PER_LEASE

    @property
    def is_due(self) -> bool:
        """Whether the leases are to be prolonged."""
        return self._clock() - self._renewed_at >= self.renew_every

    def has(self, shard: Shard, token: int) -> bool:
        """Whether a shard is still held under a fencing token, and not anew."""
        row = self.rows.get(shard)
        return row is not None and row.fencing_token == token

    def missing(self, known: Iterable[Shard]) -> list[Shard]:
        """
        Return the shards that it would like to hold, too.

        :param known: those that there are.
        """
        if self.wanted.at_most is not None and len(self.rows) >= self.wanted.at_most:
            return []
        wanted = known if self.wanted.shards is None else self.wanted.shards
        return [shard for shard in wanted if shard not in self.rows]

    def request(self, shards: Sequence[Shard]) -> Grant:
        """Ask for shards; those that were granted are held from now on."""
        wanted = self.wanted
        at_most = None if wanted.at_most is None else wanted.at_most - len(self.rows)
        grant = self._source.request_leases(
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

    def renew(self) -> tuple[Renewal, set[Shard]]:
        """Prolong all leases; returns also the shards that were lost."""
        wanted = self.wanted
        self._renewed_at = self._clock()
        renewal = self._source.renew_leases(
            wanted.consumer, wanted.feed, self.tokens(), holder=self.holder, seconds=wanted.seconds
        )
        return renewal, self.forget(set(self.rows) - renewal.held)

    def may_ask_again(self) -> bool:
        """
        Say whether shards may be asked for that others could take.

        After some were given back to those who wait, these get time; if nobody took them, for example as
        those want other shards, they are worked on here again, and none is given for a while.
        """
        if self._gave_at is None:
            return True
        if self._clock() - self._gave_at < max(_GRACE, self.renew_every):
            return False
        self._gave_at = None
        self._keep_until = self._clock() + _PATIENCE * self.wanted.seconds
        return True

    def to_share(self, renewal: Renewal, busy: Collection[Shard]) -> list[Shard]:
        """
        Return the half of the shards that goes to those who wait with none.

        :param busy: shards that are kept, as an event of theirs is being handled.
        """
        half = len(self.rows) // 2
        if not renewal.waiting or not half or self._gave_at is not None or self._clock() < self._keep_until:
            return []
        return [shard for shard in reversed(list(self.rows)) if shard not in busy][:half]

    def give_back(self, shards: Iterable[Shard]) -> None:
        """Give shards to those who wait."""
        given = list(shards)
        self._leave(given)
        self.forget(given)
        self._gave_at = self._clock()

    def leave(self) -> None:
        """Give all back, and wait no longer."""
        self._leave(list(self.rows))
        self.rows.clear()

    def _leave(self, shards: list[Shard]) -> None:
        tokens = {shard: token for shard, token in self.tokens().items() if shard in shards}
        self._source.leave(self.wanted.consumer, self.wanted.feed, tokens, holder=self.holder)

    def forget(self, shards: Iterable[Shard]) -> set[Shard]:
        """Hold shards no longer; the database knows already, or will see it."""
        gone = set(shards) & set(self.rows)
        for shard in gone:
            del self.rows[shard]
        return gone

    def tokens(self) -> dict[Shard, int]:
        """Return the fencing tokens."""
        return {shard: row.fencing_token for shard, row in self.rows.items()}

    def moved(self, row: CursorRow, token: int) -> None:
        """Note a row as it is after a step."""
        self.rows[row.shard] = row if row.fencing_token == token else replace(row, fencing_token=token)

    def held_elsewhere(self, seconds: float) -> LeaseHeldError:
        """Return the error of one who waited in vain."""
        wanted = self.wanted
        held = [
            f"shard {shard_text(one.shard)} by {one.holder}"
            for one in self._source.leases(wanted.feed)
            if one.consumer == wanted.consumer and one.holder is not None
        ]
        return LeaseHeldError(
            f"consumer {wanted.consumer!r} of feed {wanted.feed!r}: others hold all its shards after "
            f"{seconds:g} s ({'; '.join(held) or 'none is free'}). Wait longer (register_timeout), or see "
            "who holds them: airflow changefeed leases",
            consumer=wanted.consumer,
            feed=wanted.feed,
        )
