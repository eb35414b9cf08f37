# SPDX-License-Identifier: Apache-2.0
"""The protocols of consumers, their cursors and leases: positions, who may move them, dead letters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from airflow_changefeed.core.consumer import (
    ConsumerInfo,
    ConsumerSpec,
    Consumption,
    DeadLetter,
    DeadLetterState,
    Invocation,
    OutputCheck,
    Parked,
)
from airflow_changefeed.core.cursor import Began, CursorChange, CursorRow, Frontier
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import InvalidArgumentError


class ConsumerSession(Protocol):
    """
    A consumer's connection, for work and consumption in one transaction.

    Use it from one thread at a time.
    """

    @property
    def connection(self) -> Any:
        """
        The driver's own connection, for the work.

        Inside :meth:`transaction`, do not commit, roll back or close it.
        """

    def transaction(self) -> AbstractContextManager[None]:
        """
        Run a block as one transaction: commit at its end, roll back if it raises.

        :raises WorkTransactionError: the block ended the transaction itself, or swallowed an error that
            ended it; nothing was consumed.
        :raises LockTimeoutError: another writer held a lock for longer than the lock timeout.
        """

    def consume(self, step: Consumption) -> CursorRow:
        """
        Take a step, as the last statement of a :meth:`transaction`.

        The row's ``ack`` follows the cursor, but stays below the first open dead letter.

        :return: the row as of the commit of the transaction.
        :raises LeaseLostError: another grant is the newest, or it was released; nothing may be written,
            and the transaction is rolled back.
        :raises StaleVersionError: the cursor was moved meanwhile; rolled back.
        :raises WorkTransactionError: as for :meth:`transaction`.
        """

    def log(self, steps: Sequence[Consumption], *, holder: str) -> None:
        """
        Write failed attempts to the log, outside any transaction, whether or not the lease is still held.

        Nothing is written for a dropped consumer.

        :param steps: of which only shard, fencing token and attempt are used.
        """

    def close(self) -> None:
        """Close the connection, which rolls back an open transaction."""


class ConsumerStore(Protocol):
    """Consumers, their sessions and dead letters."""

    def create_consumer(
        self, spec: ConsumerSpec, *, begin: Ulid, starts: Mapping[Shard, Ulid], by: str
    ) -> ConsumerInfo:
        """
        Create a consumer. Idempotent: repeating it with the same settings leaves its position unchanged.

        :param begin: exclusive; where later shards begin.
        :param starts: exclusive; where each existing shard begins.
        :raises ConsumerSetupError: it exists with other settings (names them), or as an export; nothing
            was changed.
        """

    def change_consumer(self, spec: ConsumerSpec, *, resource_version: int, by: str) -> ConsumerInfo:
        """
        Change a consumer's settings; a running process keeps the old ones until it is restarted.

        :param resource_version: expected version of the settings.
        :raises StaleVersionError: they were changed since; carries the current ones; nothing was changed.
        :raises ConsumerNotFoundError: the consumer does not exist.
        """

    def consumers(self, feed: str | None = None) -> list[ConsumerInfo]:
        """Return the consumers created with :meth:`create_consumer`, by feed and name."""

    def consumer(self, consumer: str, feed: str) -> ConsumerInfo:
        """
        Return one consumer.

        :raises ConsumerNotFoundError: the consumer does not exist; names the existing ones.
        """

    def open_session(self, consumer: str, feed: str) -> ConsumerSession:
        """Open a connection for a consumer's work."""

    def dead_letters(
        self, feed: str | None = None, consumer: str | None = None, *, is_open: bool = True
    ) -> list[DeadLetter]:
        """Return open dead letters, or all, by number."""

    def resolve_dead_letter(
        self,
        number: int,
        state: DeadLetterState,
        *,
        by: str,
        note: str | None = None,
        resource_version: int | None = None,
    ) -> DeadLetter:
        """
        Mark a dead letter to be retried (``RETRY``), parked again, or discarded (``DROPPED``).

        :param resource_version: expected version of the dead letter; None skips the check.
        :raises StaleVersionError: it was changed since; nothing was changed.
        :raises DeadLetterError: it does not exist, or is no longer open.
        """

    def park_again(self, number: int, parked: Parked) -> DeadLetter:
        """Record another failure of a dead letter; its attempts add up over all retries."""

    def invocations(
        self, feed: str, consumer: str, *, shard: Shard | None = None, limit: int = 100
    ) -> list[Invocation]:
        """Return the newest attempts, newest first."""

    def purge_invocations(self, feed: str, consumer: str, *, before: datetime) -> int:
        """Delete older log entries; returns their number."""


@dataclass(frozen=True)
class CursorMove:
    """
    A compare-and-set change of one cursor row.

    :param frontier: the row's new frontier.
    :param expected_version: the expected resource version.
    :param fencing_token: the mover's token; an older one is refused.
    :param ack: inclusive; what the consumer no longer needs. None leaves it unchanged; it never goes
        back.
    :param is_rewind: a manual move, which may go back: ``ack`` then also moves back, so that no purge
        removes what the consumer will read again. Refused below what was purged.
    :param began: how the beginning came about; None keeps it.
    """

    shard: Shard
    frontier: Frontier
    expected_version: int
    fencing_token: int
    ack: Ulid | None = None
    is_rewind: bool = False
    began: Began | None = None


class CursorStore(Protocol):
    """One row per consumer, feed and shard, changed by compare-and-set only (Hasura's resourceVersion)."""

    def cursors(self, feed: str, consumer: str | None = None) -> list[CursorRow]:
        """Return the rows of a feed, of one consumer or of all."""

    def begin_consumer(
        self,
        consumer: str,
        feed: str,
        starts: Mapping[Shard, Ulid],
        *,
        by: str,
        why: str | None = None,
        began: Began = Began.IMPLIED,
    ) -> list[CursorRow]:
        """
        Ensure that an export has a row for each shard.

        :param starts: where the consumer begins, exclusive. An existing row keeps its position, except
            that one which has completed nothing yet may begin earlier (``Frontier.begin_at``).
        :param began: how the beginnings of new rows come about; existing ones keep theirs.
        :return: all rows of the consumer and feed.
        """

    def move_cursors(
        self, consumer: str, feed: str, moves: Sequence[CursorMove], *, by: str, why: str | None = None
    ) -> list[CursorRow]:
        """
        Change rows in one transaction, all or none; each change increments the row's resource version.

        Each change is recorded in the history, in the same transaction.

        :param why: what was done and a person's comment, at most 2,000 characters; None for a program's
            regular moves.
        :return: all rows of the consumer and feed, after the change.
        :raises StaleVersionError: a row was changed since it was read; carries the current row.
        :raises LeaseLostError: a fencing token is not the newest, or its lease expired.
        :raises CursorBeyondFeedError: a frontier is beyond the shard's high-water time.
        :raises PurgedError: a rewind goes below what was purged.
        """

    def history(
        self, feed: str, consumer: str, *, shard: Shard | None = None, limit: int = 100
    ) -> list[CursorChange]:
        """
        Return the newest changes of a consumer's cursors, newest first.

        The newest ``KEPT_CHANGES`` of each shard are kept. A consumer's own steps are in its invocation log;
        its history has only manual changes.

        :param shard: None for all.
        """

    def drop_consumer(self, consumer: str, feed: str, *, resource_version: int | None = None) -> None:
        """
        Drop a consumer's rows, history, settings and output check; it no longer holds back purges.

        The ranges that it has acknowledged are remembered: a purge does not hold their events for a consumer
        that began after them (``FeedControl.purge``).

        :param resource_version: expected version: for a consumer that of its settings, for an export the
            sum of its rows'. None skips the check.
        :raises StaleVersionError: it was changed since; nothing was dropped.
        """

    def record_check(self, check: OutputCheck) -> None:
        """
        Record what a look at the files of an export's output found; overviews have it.

        The newest of each consumer and feed is kept; nothing is recorded for a consumer without a row.
        Every reader of the feed may record. No resource version grows.

        :param check: ``checked_at`` is taken down to the database's clock.
        """


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
            "at_most cannot be combined with all_or_none, which acquires every shard: omit one of the two",
            at_most=at_most,
        )
    if not 0 < seconds <= MAX_LEASE:
        raise InvalidArgumentError(
            f"a lease must last more than 0 and at most {MAX_LEASE} seconds, not {seconds}"
        )
