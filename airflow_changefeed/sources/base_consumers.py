# SPDX-License-Identifier: Apache-2.0
"""The protocol of consumers: who may consume a shard, and the step that is atomic with their work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from airflow_changefeed.core.consumer import (
    ConsumerInfo,
    ConsumerSpec,
    Consumption,
    DeadLetter,
    DeadLetterState,
    Grant,
    Invocation,
    LeaseInfo,
    Parked,
    Renewal,
)
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid


class ConsumerSession(Protocol):
    """
    A consumer's own connection, for work and consumption in one transaction.

    Belongs to one thread at a time.
    """

    @property
    def connection(self) -> Any:
        """
        The driver's own connection, for the work.

        In a transaction of :meth:`transaction` it must neither commit nor roll back, nor close.
        """

    def transaction(self) -> AbstractContextManager[None]:
        """
        Run a block as one transaction: commit at its end, roll back when it raises.

        :raises WorkTransactionError: the block ended the transaction by itself, or it was ended by an error
            which the block swallowed: nothing was consumed; terminal.
        :raises LockTimeoutError: another writer held a lock for longer than the lock timeout; transient.
        """

    def consume(self, step: Consumption) -> CursorRow:
        """
        Take a step, as the last statement of a :meth:`transaction`.

        The row's ``ack`` follows the cursor, but stays below the first dead letter that is open.

        :return: the row as it is once the transaction has committed.
        :raises LeaseLostError: another grant is the newest, or it was given back; nothing may be written, and
            the transaction is rolled back; transient.
        :raises StaleVersionError: somebody moved the cursor meanwhile; rolled back; terminal.
        :raises WorkTransactionError: as :meth:`transaction` says; terminal.
        """

    def log(self, steps: Sequence[Consumption], *, holder: str) -> None:
        """
        Write attempts that failed into the log, outside of any transaction, whoever holds the lease now.

        Of a consumer that was dropped nothing is written.

        :param steps: of which only shard, fencing token and attempt count.
        """

    def close(self) -> None:
        """Close the connection, which rolls back what is open."""


class ConsumerStore(Protocol):
    """Consumers, their leases and dead letters. A shard of a consumer has at most one holder at a time."""

    def create_consumer(
        self, spec: ConsumerSpec, *, begin: Ulid, starts: Mapping[Shard, Ulid], by: str
    ) -> ConsumerInfo:
        """
        Create a consumer. Idempotent: repeating it with the same settings leaves its position unchanged.

        :param begin: exclusive; where shards begin that come later.
        :param starts: exclusive; where the shards begin that are there.
        :raises ConsumerSetupError: it exists with other settings (names them), or as the consumer of an
            export; nothing was changed; terminal.
        """

    def change_consumer(self, spec: ConsumerSpec, *, resource_version: int, by: str) -> ConsumerInfo:
        """
        Give a consumer other settings; a running one goes on with those it began with until it is started
        again.

        :param resource_version: of the settings that were seen.
        :raises StaleVersionError: they were changed since; tells the present ones; nothing was changed;
            terminal.
        :raises ConsumerNotFoundError: the feed has none of that name; terminal.
        """

    def consumers(self, feed: str | None = None) -> list[ConsumerInfo]:
        """Return the consumers that were made with :meth:`create_consumer`, by feed and name."""

    def consumer(self, consumer: str, feed: str) -> ConsumerInfo:
        """
        Return one consumer.

        :raises ConsumerNotFoundError: the feed has none of that name; names those it has; terminal.
        """

    def request_leases(
        self,
        consumer: str,
        feed: str,
        shards: Sequence[Shard],
        *,
        holder: str,
        seconds: float,
        at_most: int | None = None,
    ) -> Grant:
        """
        Take the leases that are free, given back, run out, or the holder's own already.

        A shard without a row begins where the consumer's later shards do, or at its end where its clock has
        not come so far. Without any lease the holder is
        written down as waiting, for as long as ``seconds`` after each request; with one it no longer waits.

        :param holder: a name that no other process has.
        :param seconds: until they run out, by the database's clock.
        :param at_most: how many; None for all.
        """

    def renew_leases(
        self, consumer: str, feed: str, tokens: Mapping[Shard, int], *, holder: str, seconds: float
    ) -> Renewal:
        """Prolong leases whose token is still the newest, also when they ran out and nobody asked."""

    def leave(self, consumer: str, feed: str, tokens: Mapping[Shard, int], *, holder: str) -> None:
        """Give leases back, as far as they are still the newest, and wait no longer."""

    def leases(self, feed: str | None = None) -> list[LeaseInfo]:
        """Return the shards of all consumers, exports' too, with holders and waiters."""

    def open_session(self, consumer: str, feed: str) -> ConsumerSession:
        """Open a connection for a consumer's work."""

    def dead_letters(
        self, feed: str | None = None, consumer: str | None = None, *, is_open: bool = True
    ) -> list[DeadLetter]:
        """Return dead letters by number: those that are open, or all."""

    def resolve_dead_letter(
        self, number: int, state: DeadLetterState, *, by: str, note: str | None = None
    ) -> DeadLetter:
        """
        Let a dead letter be tried again (``RETRY``), be parked again, or be done without (``DROPPED``).

        :raises DeadLetterError: there is no such letter, or it is not open any more; terminal.
        """

    def park_again(self, number: int, parked: Parked) -> DeadLetter:
        """Write down that a dead letter failed once more; its attempts are those of all tries."""

    def invocations(
        self, feed: str, consumer: str, *, shard: Shard | None = None, limit: int = 100
    ) -> list[Invocation]:
        """Return the newest attempts, newest first."""

    def purge_invocations(self, feed: str, consumer: str, *, before: datetime) -> int:
        """Remove older entries of the log; returns how many."""
