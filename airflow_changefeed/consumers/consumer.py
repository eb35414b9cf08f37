# SPDX-License-Identifier: Apache-2.0
"""
A consumer: processes every event of a feed once, in order, with exclusive ownership of its shards.

Its methods are those of Comdb2's Lua consumers: get, poll, consume and next, with an explicit transaction to
make the work and the consumption atomic.

Names, options and row order of the default one are those of Comdb2's default Lua consumers, with
``changefeed_`` in place of ``comdb2_``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from airflow_changefeed.consumers.event import (
    ONE,
    Attempts,
    Batch,
    FeedEvent,
    UnreadableEvent,
    ended,
    first_unreadable,
)
from airflow_changefeed.consumers.receiving import Receiver
from airflow_changefeed.consumers.settings import DefaultOptions
from airflow_changefeed.core.consumer import Attempt, OnPoison, Outcome, Parked
from airflow_changefeed.core.feed import Shard, counted
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConsumerUseError,
    DeadLetterError,
    LeaseHeldError,
    LeaseLostError,
    SourceUnavailableError,
    StaleVersionError,
)
from airflow_changefeed.sources.base import FeedSource


class Consumer(Receiver):
    """
    A consumer of a feed; a context manager that acquires shards and releases them at its end.

    Each shard has one holder at a time. Use it from one thread at a time. ``for event in consumer`` consumes
    an event when the next one is requested, so breaking out of the loop leaves the last event unconsumed.

    :param source: from ``open_source`` or a hook.
    :param name: of a consumer created with ``create_consumer``.
    :param shards: shards that it may hold; None for all, including shards created later.
    :param register_timeout: seconds to wait for the first shard; None waits forever.
    :param emit_timeout: seconds of inactivity (no request for an event, no consume) after which a waiting
        consumer may take over a shard.
    :param poll_interval: seconds between two polls for new events, one statement each.
    :param with_sequence, with_epoch, with_tid: whether events have ``sequence``, ``epoch`` and ``tid``.
    :param at_most_shards: how many it may hold; None for all.
    :param pace: how it waits and how much it reads at a time.
    :param by: who consumes, for example the run of a DAG; the holder's name, which is also who moved the
        cursor last, begins with it.
    :raises InvalidArgumentError: names every problem.
    :raises ConsumerNotFoundError: the feed has no such consumer.
    """

    def get(self) -> FeedEvent:
        """
        Return the next event, waiting for it.

        It stays the same event until it is consumed or passed to :meth:`next`; after a rollback it is
        delivered again.

        :raises ConsumerUseError: a transaction is open on a database with a single writer, so no event
            can arrive until it ends.
        """
        got = self.get_batch(ONE)
        if not got:
            raise ConsumerUseError(
                "no event can arrive while this transaction is open, because the database has a single "
                "writer; get the events before using the connection, or use poll"
            )
        return got[0]

    def poll(self, timeout: float = 0.0) -> FeedEvent | None:
        """
        Return the next event like :meth:`get`, or None after the timeout.

        :param timeout: seconds; 0 checks once.
        """
        got = self.get_batch(ONE, timeout)
        return got[0] if got else None

    def get_batch(self, batch: Batch, timeout: float | None = None) -> list[FeedEvent]:
        """
        Return the next batch of events of one shard.

        One :meth:`consume` or :meth:`next` consumes them all; until then they are delivered again.

        An event that cannot be read counts as a failed attempt each time its turn comes. After the consumer's
        ``max_attempts`` it is parked, if the settings say so; else the error is raised once no other shard
        has events.

        :param timeout: seconds to wait for the first event; None waits forever.
        :return: empty after the timeout.
        :raises ColumnTypeError: an event cannot be read; names it.
        :raises MissingEventError: the row of an event was deleted; names it.
        """
        begun = self.pace.clock()
        while True:
            left = None if timeout is None else max(0.0, timeout - (self.pace.clock() - begun))
            got = self.receive(batch, left)
            unreadable = first_unreadable(got)
            if unreadable is None:
                return got
            if not self._is_idle:
                # The events before it are consumed first.
                if timeout is not None and self._work.shards:
                    self._got = []
                    return []
                raise unreadable.error
            self._settle(got, unreadable.error)

    def _settle(self, got: list[FeedEvent], error: ChangefeedError) -> None:
        """Count an attempt at events of which one cannot be read; park them, or stop at them."""
        shard, token, spec = got[0].shard, self._got_under, self.info.spec
        if self._attempts is None:
            self._attempts = Attempts(self._source, spec.feed, spec.consumer, self.pace.clock)
        attempt = ended(self._attempts.next(got, token), Outcome.FAILED, error)
        self.log(shard, attempt, token)
        self._attempts.failed(shard, token, attempt)
        is_last = spec.max_attempts is not None and attempt.number >= spec.max_attempts
        if got[0].dead_letter is None and not (is_last and spec.on_poison is OnPoison.PARK):
            self.rest(shard, math.inf, error)
            return
        was_open = self._work.is_open
        if was_open:
            self._work.roll_back()
        with suppress(LeaseLostError):  # its new holder parks it
            self.park(attempt.error or "", attempt.number)
        if was_open:
            self._work.begin()

    def __iter__(self) -> Iterator[FeedEvent]:
        while True:
            event = self.get()
            yield event
            self.acknowledge(event)

    def acknowledge(self, event: FeedEvent) -> None:
        """Consume a loop's event when the next one is requested, unless the loop already did."""
        if self._is_lost or self._got[:1] == [event]:
            self.consume()

    def consume(self, events: int | None = None) -> None:
        """
        Consume the last event or batch returned: at the commit of the open transaction, or in a transaction
        of its own.

        :param events: how many of the batch, from the first; None for all.
        :raises ConsumerUseError: no event was returned, or it was already consumed.
        :raises LeaseLostError: another consumer holds the shard now; nothing was written.
        """
        if self._work.is_open:
            self._take("consume", events)
            return
        with self._transaction():
            self._take("consume", events)

    def next(self, events: int | None = None) -> None:
        """
        Mark the last event or batch returned, to be consumed at commit; the next :meth:`get` continues after
        it.

        :param events: as for :meth:`consume`.
        :raises ConsumerUseError: no transaction is open, or no event was returned.
        """
        self._work.need_open("next")
        self._take("next", events)

    def _take(self, what: str, events: int | None) -> None:
        got = self._checked(what, events)[:events]
        self._work.mark(got, self._got_under)
        if got[0].dead_letter is None:
            self._intake.readers[got[0].shard].take(len(got))
        else:
            self._dead_letters_taken.append(self._intake.dead_letters.popleft())
        self._got = self._got[len(got) :]

    def _checked(self, what: str, events: int | None) -> list[FeedEvent]:
        """Return the events last returned; raise if that many cannot be consumed."""
        if self._is_lost or not self._is_got_held():
            self._is_lost, self._got = False, []
            raise LeaseLostError(
                f"consumer {self.info.spec.consumer!r} of feed {self.info.spec.feed!r} lost the shard "
                "of the event: the consumer was inactive for longer than its emit timeout, and another "
                "consumer waited. Nothing was written. Call get() to continue with the shards that the "
                "consumer holds now",
                consumer=self.info.spec.consumer,
                feed=self.info.spec.feed,
            )
        if not self._got:
            raise ConsumerUseError(
                f"{what} without an event; call get() or poll() first, and consume each event only once"
            )
        if events is not None and not 1 <= events <= len(self._got):
            raise ConsumerUseError(
                f"{what} of {counted(events, 'event')}, but get() returned {len(self._got)}"
            )
        return self._got

    def begin(self) -> None:
        """
        Begin a transaction for :meth:`next`, :meth:`connection` and :meth:`commit`.

        It begins in the database when the connection is first used, or at commit; until then events can be
        read on any database.

        :raises ConsumerUseError: a transaction is already open.
        """
        self._need_registered()
        self._work.begin()

    @property
    def connection(self) -> Any:
        """
        The driver's own connection to the feed's database, in the transaction.

        Writes through it commit together with the consumed events. Do not commit, roll back or close it.

        :raises ConsumerUseError: no transaction is open.
        """
        return self._work.connect()

    def commit(self, *, attempt: Attempt | None = None) -> None:
        """
        Consume what :meth:`next` marked and commit, atomically.

        :param attempt: for the invocation log.
        :raises LeaseLostError: another consumer holds a shard now; nothing was written.
        :raises WorkTransactionError: the work ended the transaction itself; nothing was consumed.
        :raises StaleVersionError: the cursor was moved meanwhile; nothing was written.
        """
        self._work.need_open("commit")
        shards = self._work.shards
        try:
            self._work.commit(attempt)
        except BaseException as error:
            self._put_back(shards, error)
            raise
        for shard in shards:
            self._intake.readers[shard].resolve()
        self._dead_letters_taken = []

    def roll_back(self, error: BaseException | None = None) -> None:
        """Roll back; the events are delivered again."""
        shards = self._work.shards
        try:
            self._work.roll_back(error)
        finally:
            self._put_back(shards, error)

    def _put_back(self, shards: set[Shard], error: BaseException | None) -> None:
        """
        Put back what was not consumed; discard what another consumer may hold, or what may have been consumed
        after all.
        """
        self._got = []
        for reader in self._intake.readers.values():
            reader.put_back()
        self._intake.put_back(self._dead_letters_taken)
        self._dead_letters_taken = []
        if isinstance(error, SourceUnavailableError):
            # Whether the commit succeeded is unknown; the cursor's position shows it.
            self._work.close()
            self._intake.forget(self.shards)
        elif isinstance(error, (LeaseLostError, StaleVersionError)):
            self._intake.forget(shards)
        elif isinstance(error, DeadLetterError):
            # One was resolved meanwhile; read the ones still to be retried again.
            self._intake.dead_letters.clear()

    @contextmanager
    def transaction(self, *, attempt: Attempt | None = None) -> Iterator[Any]:
        """
        Run a block as one transaction; it receives the connection.

        Commits at the end, together with the events that :meth:`next` or :meth:`consume` was called for;
        rolls back if the block raises.

        :raises ChangefeedError: as for :meth:`commit`.
        """
        self._need_registered()
        if not self._got:
            # Once the transaction has begun in the database, not every engine can still order events, and an
            # attempt at one that cannot be read could not be logged.
            first = self._first(1)
            if isinstance(first, UnreadableEvent) and not self._is_lost:
                self.poll()
                self._got = []
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
        Park the last event or batch returned as dead letters, one per event, and continue.

        :param attempts: how many attempts failed.
        :param attempt: the last one, for the invocation log.
        :raises LeaseLostError: another consumer holds the shard now; nothing was written.
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
            parked = Parked(event.id, attempts, reason)
            self._work.mark_place(event.shard, event.id, self._got_under, parked)
        self._intake.readers[got[0].shard].take(len(got))
        self._got = []
        self.commit(attempt=attempt)

    def log(self, shard: Shard, attempt: Attempt, token: int) -> None:
        """Write a failed attempt to the invocation log, with the fencing token of its lease."""
        self._work.log(shard, attempt, token)

    def token(self, shard: Shard) -> int:
        """Return the fencing token of a held shard."""
        return self._intake.holding.rows[shard].fencing_token


EVENT, ID, TABLE = "changefeed_event", "changefeed_id", "changefeed_table"
_BY_TRANSACTION = Batch(transaction=True)
#: Seconds per wait, after which the stop condition is checked.
_SLICE = 1.0

Row = dict[str, Any]


def default_rows(
    source: FeedSource,
    name: str,
    feed: str,
    options: DefaultOptions | None = None,
    *,
    should_stop: Callable[[], bool] = lambda: False,
    **consumer_options: Any,
) -> Generator[Row, None, None]:
    """
    Yield the rows of a feed's events until asked to stop.

    ``changefeed_event`` is ``add`` or ``del``; an update gives two rows, ``old`` and ``new``, with the same
    ``changefeed_id``. A capture's ``reset``, ``ready`` and ``ddl`` have no values; how the columns changed
    is in ``changefeed_ddl``, which consumers with ``ddl`` have. ``txn`` ends a transaction;
    ``register_timeout`` and ``poll_timeout`` report a timeout; these rows have no id and no values. All rows
    have the same columns: the metadata columns first, then the table's.

    An event is consumed when the row following its last row is requested; with ``batch_consume``, all events
    of a transaction are consumed when the row following their last row is.

    :param should_stop: checked between rows and each second while waiting.
    :param consumer_options: of :class:`~airflow_changefeed.consumers.consumer.Consumer`.
    :raises InvalidArgumentError: options that the feed does not support.
    :raises ConsumerNotFoundError: the feed has no such consumer.
    :raises LeaseLostError: the client took longer than ``emit_timeout`` while another consumer waited;
        its last event is delivered again to the new holder.
    """
    options = options or DefaultOptions()
    wait = options.register_timeout
    consumer = Consumer(
        source,
        name,
        feed,
        register_timeout=None if wait is None else wait / 1000,
        emit_timeout=options.emit_timeout / 1000,
        with_epoch=options.with_epoch,
        with_sequence=options.with_sequence,
        with_tid=options.with_tid,
        **consumer_options,
    )
    if options.batch_consume:
        consumer.check_batch(_BY_TRANSACTION)
    # Checked here and not at the first row, as it would be in a generator.
    return _all_rows(consumer, options, should_stop)


def _all_rows(
    consumer: Consumer, options: DefaultOptions, should_stop: Callable[[], bool]
) -> Generator[Row, None, None]:
    rows = _Rows(consumer, options)
    while not should_stop():
        try:
            consumer.register(should_stop)
        except LeaseHeldError:
            yield rows.sentinel("register_timeout")
            continue
        try:
            yield from _consumed(consumer, options, rows, should_stop)
        finally:
            consumer.leave()


def _consumed(
    consumer: Consumer, options: DefaultOptions, rows: _Rows, should_stop: Callable[[], bool]
) -> Iterator[Row]:
    batch = _BY_TRANSACTION if options.batch_consume else ONE
    while not should_stop():
        events = _wait(consumer, batch, options, should_stop)
        if not events:
            if not should_stop():
                yield rows.sentinel("poll_timeout")
            continue
        for event in events:
            yield from rows.of(event)
        if options.with_txn_sentinel:
            yield rows.sentinel("txn")
        # The client asked for more, so it has received the previous row.
        consumer.consume()


def _wait(
    consumer: Consumer, batch: Batch, options: DefaultOptions, should_stop: Callable[[], bool]
) -> list[FeedEvent]:
    """Wait in slices; empty after the poll timeout or when asked to stop."""
    clock = consumer.pace.clock
    begun, most = clock(), math.inf if options.poll_timeout is None else options.poll_timeout / 1000
    while True:
        events = consumer.get_batch(batch, min(_SLICE, max(0.0, most - (clock() - begun))))
        if events or clock() - begun >= most or should_stop():
            return events


class _Rows:
    def __init__(self, consumer: Consumer, options: DefaultOptions) -> None:
        columns = consumer.columns
        asked = {"epoch": options.with_epoch, "sequence": options.with_sequence, "tid": options.with_tid}
        asked["ddl"] = columns.with_ddl
        self._metadata = [name for name, is_asked in asked.items() if is_asked]
        self._has_tables = len(columns.tables) > 1
        ours = [EVENT, ID, *(f"changefeed_{name}" for name in self._metadata)]
        self._empty: Row = dict.fromkeys([*ours, *([TABLE] if self._has_tables else []), *columns.fields])

    def sentinel(self, what: str) -> Row:
        """Return a row that belongs to no event."""
        return {**self._empty, EVENT: what}

    def of(self, event: FeedEvent) -> Iterator[Row]:
        """Return the rows of an event."""
        about = {ID: str(event.id)} | {f"changefeed_{one}": getattr(event, one) for one in self._metadata}
        if self._has_tables:
            about[TABLE] = event.name
        images: list[tuple[str, Row | None]]
        if event.type == "upd":
            images = [("old", event.old), ("new", event.new)]
        elif event.is_captured:
            images = [(event.type, event.new if event.type == "add" else event.old)]
        else:
            images = [(event.type, event.row)]
        for what, image in images:
            yield {**self._empty, **about, EVENT: what, **(image or {})}
