# SPDX-License-Identifier: Apache-2.0
"""
A consumer: sees every event of a feed once, in order, while nobody else does.

Its calls are those of Comdb2's Lua consumers: get, poll, consume, next, with an explicit transaction where
the work and the consumption are to be one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from airflow_changefeed.consumers.events.event import FeedEvent
from airflow_changefeed.consumers.receiving import Receiver
from airflow_changefeed.core.consumer import Attempt, Parked
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.exceptions import (
    ConsumerUseError,
    DeadLetterError,
    LeaseLostError,
    SourceUnavailableError,
    StaleVersionError,
)


class Consumer(Receiver):
    """
    A consumer of a feed; a context manager that registers, and gives back at its end.

    Each shard has one holder at a time. Belongs to one thread at a time. ``for event in consumer`` consumes
    an event when the next one is asked for: a loop that is left leaves its last event unconsumed.

    :param source: of ``open_source``, or of a hook.
    :param name: of a consumer that ``create_consumer`` has made.
    :param shards: those that it may hold; None for all, also those that come later.
    :param register_timeout: seconds to wait for the first shard; None waits for ever.
    :param emit_timeout: seconds after which another one that waits gets a shard, if this one neither asks for
        an event nor consumes.
    :param poll_interval: seconds between two looks for news, one statement each.
    :param with_sequence, with_epoch, with_tid: whether events tell ``sequence``, ``epoch`` and ``tid``.
    :param at_most_shards: how many it may hold; None for all.
    :param pace: how it waits, and how much it reads at once.
    :raises InvalidArgumentError: names all that is wrong; terminal.
    :raises ConsumerNotFoundError: the feed has no such consumer; terminal.
    """

    def __iter__(self) -> Iterator[FeedEvent]:
        while True:
            event = self.get()
            yield event
            self.acknowledge(event)

    def acknowledge(self, event: FeedEvent) -> None:
        """Consume an event of a loop that asks for the next one, unless the loop did it already."""
        if self._is_lost or self._got[:1] == [event]:
            self.consume()

    def consume(self, events: int | None = None) -> None:
        """
        Consume what was got last: in the transaction that is open, at its commit, or in one of its own.

        :param events: how many of a batch, from its first; None for all.
        :raises ConsumerUseError: nothing was got, or it was consumed already; terminal.
        :raises LeaseLostError: the shard is another one's now; nothing was written; transient.
        """
        if self._work.is_open:
            self._take("consume", events)
            return
        with self._transaction():
            self._take("consume", events)

    def next(self, events: int | None = None) -> None:
        """
        Remember what was got last, to be consumed at the commit; the next :meth:`get` goes on behind it.

        :param events: as of :meth:`consume`.
        :raises ConsumerUseError: no transaction is open, or nothing was got; terminal.
        """
        self._work.need_open("next")
        self._take("next", events)

    def _take(self, what: str, events: int | None) -> None:
        got = self._checked(what, events)[:events]
        self._work.mark(got, self._got_under)
        if got[0].dead_letter is None:
            self._intake.reader(got[0].shard).take(len(got))
        else:
            self._dead_letters_taken.append(self._intake.dead_letters.popleft())
        self._got = self._got[len(got) :]

    def _checked(self, what: str, events: int | None) -> list[FeedEvent]:
        """Return what was got, if so much of it can be consumed."""
        if self._is_lost or not self._is_got_held():
            self._is_lost, self._got = False, []
            raise LeaseLostError(
                f"consumer {self.info.spec.consumer!r} of feed {self.info.spec.feed!r} lost the shard of the "
                "event that it got: it did nothing for longer than its emit timeout while another one "
                "waited. Nothing was written. get() goes on with what it holds now",
                consumer=self.info.spec.consumer,
                feed=self.info.spec.feed,
            )
        if not self._got:
            raise ConsumerUseError(
                f"{what} without an event: get() or poll() one first; each can be consumed once"
            )
        if events is not None and not 1 <= events <= len(self._got):
            raise ConsumerUseError(f"{what} of {events} events, but {len(self._got)} were got")
        return self._got

    def begin(self) -> None:
        """
        Begin a transaction, for :meth:`next`, :meth:`connection` and :meth:`commit`.

        The database begins it when the connection is asked for, or at the commit: until then events can be
        got on any database.

        :raises ConsumerUseError: one is open already; terminal.
        """
        self._need_registered()
        self._work.begin()

    @property
    def connection(self) -> Any:
        """
        The driver's own connection to the feed's database, in the transaction.

        What is written by it is committed together with what is consumed. It must neither commit nor roll
        back, nor close.

        :raises ConsumerUseError: no transaction is open; terminal.
        """
        return self._work.connect()

    def commit(self, *, attempt: Attempt | None = None) -> None:
        """
        Consume what :meth:`next` remembered, and commit, both or neither.

        :param attempt: for the log of invocations.
        :raises LeaseLostError: a shard is another one's now; nothing was written; transient.
        :raises WorkTransactionError: the work ended the transaction by itself; nothing was consumed;
            terminal.
        :raises StaleVersionError: somebody moved the cursor; nothing was written; terminal.
        """
        self._work.need_open("commit")
        shards = self._work.shards
        try:
            self._work.commit(attempt)
        except BaseException as error:
            self._put_back(shards, error)
            raise
        for shard in shards:
            self._intake.reader(shard).resolve()
        self._dead_letters_taken = []

    def roll_back(self, error: BaseException | None = None) -> None:
        """
        Roll back; what was got comes again.

        :param error: why, if something went wrong.
        """
        shards = self._work.shards
        try:
            self._work.roll_back(error)
        finally:
            self._put_back(shards, error)

    def _put_back(self, shards: set[Shard], error: BaseException | None) -> None:
        """Bring back what was not consumed; forget what may be another one's, or consumed all the same."""
        self._got = []
        for reader in self._intake.readers:
            reader.put_back()
        self._intake.put_back(self._dead_letters_taken)
        self._dead_letters_taken = []
        if isinstance(error, SourceUnavailableError):
            # Whether the commit was made is not known; where the cursor stands says it.
            self._work.close()
            self._intake.forget(self.shards)
        elif isinstance(error, (LeaseLostError, StaleVersionError)):
            self._intake.forget(shards)
        elif isinstance(error, DeadLetterError):
            # Somebody resolved one meanwhile; those that are still to be tried again are read again.
            self._intake.dead_letters.clear()

    @contextmanager
    def transaction(self, *, attempt: Attempt | None = None) -> Iterator[Any]:
        """
        Run a block as one transaction; it gets the connection.

        Commits at the end, with what :meth:`next` or :meth:`consume` was called for in it; rolls back when
        the block raises.

        :param attempt: for the log of invocations.
        :raises ChangefeedError: as :meth:`commit` says.
        """
        self._need_registered()
        if not self._got:
            # Once the database knows of the transaction, events can no longer be ordered everywhere.
            self._intake.first(may_drain=self._may_drain())
        with self._transaction(attempt):
            yield self.connection

    @contextmanager
    def _transaction(self, attempt: Attempt | None = None) -> Iterator[None]:
        self.begin()
        try:
            yield
        except BaseException as error:
            if self._work.is_open:
                self.roll_back(error)
            raise
        if self._work.is_open:
            self.commit(attempt=attempt)

    def park(self, reason: str, attempts: int, *, attempt: Attempt | None = None) -> None:
        """
        Leave what was got last behind as dead letters, each event for itself, and go on.

        :param reason: why, for people.
        :param attempts: how often it failed.
        :param attempt: the last one, for the log of invocations.
        :raises LeaseLostError: the shard is another one's now; nothing was written; transient.
        """
        got = list(self._checked("park", None))
        if got[0].dead_letter is not None:
            if attempt is not None:
                self.log(got[0].shard, attempt, self.token(got[0].shard))
            self._intake.dead_letters.popleft()
            self._got = []
            with suppress(DeadLetterError):  # resolved meanwhile
                self._source.park_again(got[0].dead_letter, Parked(got[0].id, attempts, reason))
            return
        self._work.begin()
        for event in got:
            self._work.mark_parked(event.shard, Parked(event.id, attempts, reason), self._got_under)
        self._intake.reader(got[0].shard).take(len(got))
        self._got = []
        self.commit(attempt=attempt)

    def log(self, shard: Shard, attempt: Attempt, token: int) -> None:
        """
        Write an attempt that failed into the log of invocations.

        :param token: of the lease under which it was made.
        """
        self._work.log(shard, attempt, token)

    def token(self, shard: Shard) -> int:
        """Return the fencing token of a shard that it holds."""
        return self._intake.holding.rows[shard].fencing_token
