# SPDX-License-Identifier: Apache-2.0
"""The shards that a consumer holds, and the transaction of its work and the events consumed with it."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_changefeed.consumers.event import FeedEvent
from airflow_changefeed.core.consumer import LONGEST_RUN, Attempt, Consumption, Parked
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import ConsumerUseError, LeaseHeldError, LeaseLostError, storable
from airflow_changefeed.sources.base_consumers import Grant

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_changefeed.sources.base import FeedSource
    from airflow_changefeed.sources.base_consumers import ConsumerSession


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
            f"consumer {wanted.consumer!r} of feed {wanted.feed!r}: other consumers still hold all "
            f"shards after {seconds:g} s ({'; '.join(held) or 'none is free'}). Wait longer "
            f"(register_timeout), or list the holders: {listed}",
            consumer=wanted.consumer,
            feed=wanted.feed,
        )


class _RolledBackError(Exception):
    """Internal exception that ends a session's transaction."""


@dataclass
class _Mark:
    """
    What is consumed at commit: events of a shard up to a ULID, a parked event, or a dead letter.

    :param token: fencing token of the lease under which it was read; under a newer lease another consumer
        may have consumed it.
    """

    shard: Shard
    upto: Ulid
    token: int
    dead_letter: int | None = None
    parked: Parked | None = None


class Work:
    """
    A consumer's database session and its transaction.

    A transaction begins in the database when its connection is first used, or at commit; until then a
    consumer can still read events, even on a database with a single writer.
    """

    def __init__(self, source: FeedSource, holding: Holding) -> None:
        self._source = source
        self._holding = holding
        self._session: ConsumerSession | None = None
        self._block: AbstractContextManager[None] | None = None
        self._marks: list[_Mark] = []
        self.is_open = False

    @property
    def has_begun(self) -> bool:
        """Whether the transaction has begun in the database."""
        return self._block is not None

    @property
    def shards(self) -> set[Shard]:
        """The shards whose events the transaction consumes."""
        return {mark.shard for mark in self._marks}

    @property
    def session(self) -> ConsumerSession:
        """The session, opened on first use."""
        if self._session is None:
            wanted = self._holding.wanted
            self._session = self._source.open_session(wanted.consumer, wanted.feed)
        return self._session

    def begin(self) -> None:
        """Begin a transaction."""
        if self.is_open:
            raise ConsumerUseError("a transaction is already open; commit or roll it back first")
        self.is_open = True

    def connect(self) -> Any:
        """Return the connection, in the transaction."""
        self.need_open("the connection")
        if self._block is None:
            block = self.session.transaction()
            block.__enter__()
            self._block = block
        return self.session.connection

    def need_open(self, what: str) -> None:
        """Raise ConsumerUseError unless a transaction is open."""
        if not self.is_open:
            raise ConsumerUseError(f"{what} needs a transaction; call begin(), or use `with transaction()`")

    def mark(self, events: Sequence[FeedEvent], token: int) -> None:
        """Consume events of one shard, or a dead letter, with the transaction."""
        last = events[-1]
        before = self._marks[-1] if self._marks else None
        if last.dead_letter is not None:
            self._marks.append(_Mark(last.shard, last.id, token, dead_letter=last.dead_letter))
        elif before and (before.shard, before.token) == (last.shard, token) and before.dead_letter is None:
            before.upto = last.id
        else:
            self.mark_place(last.shard, last.id, token)

    def mark_place(self, shard: Shard, upto: Ulid, token: int, parked: Parked | None = None) -> None:
        """Move the cursor with the transaction, over events that are not delivered or one that is parked."""
        self._marks.append(_Mark(shard, upto, token, parked=parked))

    @property
    def is_held(self) -> bool:
        """Whether all marked events are still held under the lease they were read under."""
        return all(self._holding.has(mark.shard, mark.token) for mark in self._marks)

    def commit(self, attempt: Attempt | None = None) -> None:
        """Consume the marked events and commit."""
        rows: dict[Shard, CursorRow] = {}
        try:
            if self._marks:
                self.connect()
            for mark in self._marks:
                rows[mark.shard] = self.session.consume(self._step(mark, rows, attempt))
                attempt = None
        except BaseException as error:
            self.roll_back(error)
            raise
        block, self._block = self._block, None
        self._end()
        if block is not None:
            block.__exit__(None, None, None)
        for row in rows.values():
            self._holding.rows[row.shard] = row

    def _step(self, mark: _Mark, rows: dict[Shard, CursorRow], attempt: Attempt | None) -> Consumption:
        wanted = self._holding.wanted
        row = rows.get(mark.shard) or self._holding.rows.get(mark.shard)
        if row is None or row.fencing_token != mark.token:
            raise LeaseLostError(
                f"consumer {wanted.consumer!r} of feed {wanted.feed!r} lost shard {mark.shard}: the "
                "consumer did not request or consume an event within its emit timeout, and another "
                "consumer waited. Nothing was written. Call get() to continue with the shards that the "
                "consumer holds now, or raise emit_timeout",
                consumer=wanted.consumer,
                feed=wanted.feed,
                shard=mark.shard,
            )
        return Consumption(
            shard=mark.shard,
            upto=max(mark.upto, row.ulid),
            expected_version=row.resource_version,
            fencing_token=row.fencing_token,
            seconds=wanted.seconds,
            attempt=attempt,
            parked=mark.parked,
            dead_letter=mark.dead_letter,
        )

    def roll_back(self, error: BaseException | None = None) -> None:
        """
        Roll back.

        :param error: the cause; the session may raise a more precise error for it.
        """
        block, self._block = self._block, None
        self._end()
        if block is not None:
            why = error or _RolledBackError()
            try:
                block.__exit__(type(why), why, why.__traceback__)
            except _RolledBackError:
                return

    def _end(self) -> None:
        self._marks = []
        self.is_open = False

    def log(self, shard: Shard, attempt: Attempt, token: int) -> None:
        """Write a failed attempt to the log, outside any transaction."""
        step = Consumption(shard, attempt.last, 0, token, self._holding.wanted.seconds, attempt)
        self.session.log([step], holder=self._holding.holder)

    def close(self) -> None:
        """Close the session, which rolls back an open transaction."""
        self._end()
        session, self._session, self._block = self._session, None, None
        if session is not None:
            session.close()
