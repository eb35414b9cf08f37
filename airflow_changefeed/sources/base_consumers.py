# SPDX-License-Identifier: Apache-2.0
"""The protocol of consumers: the step that commits atomically with the work, and dead letters."""

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
    Invocation,
    Parked,
)
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid


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
