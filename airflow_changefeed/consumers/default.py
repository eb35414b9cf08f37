# SPDX-License-Identifier: Apache-2.0
"""
The default consumer: the rows of all events, for clients that only display them.

Names, options and row order are those of Comdb2's default Lua consumers, with ``changefeed_`` in place of
``comdb2_``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from typing import Any

from airflow_changefeed.consumers.consumer import Consumer
from airflow_changefeed.consumers.events.batch import ONE, Batch
from airflow_changefeed.consumers.events.event import FeedEvent
from airflow_changefeed.consumers.settings import DefaultOptions
from airflow_changefeed.exceptions import LeaseHeldError
from airflow_changefeed.sources.base import FeedSource

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
