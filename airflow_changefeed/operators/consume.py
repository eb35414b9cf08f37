# SPDX-License-Identifier: Apache-2.0
"""Run a handler for each event of a feed, as a consumer of which one process runs at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_changefeed.consumers.handlers import check_handler
from airflow_changefeed.consumers.settings import OPTIONS
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, counted, parse_shards, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import format_time, one_of, read_value, whole
from airflow_changefeed.exceptions import (
    HandlerError,
    InvalidWindowError,
    LeaseHeldError,
    PoisonError,
    StoppedError,
)
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.observability import metrics
from airflow_changefeed.observability.lineage import Lineage, ReportsLineage, connection_dataset
from airflow_changefeed.tasks.arguments import (
    NamesConnections,
    check_arguments,
    check_consumer_name,
    check_name,
)
from airflow_changefeed.tasks.context import reports_errors, run_name, run_window
from airflow_changefeed.tasks.waiting import WAIT_LENGTH, WAIT_TIMEOUT, WaitsForWindow

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from airflow.sdk import Context

    from airflow_changefeed.core.window import Window
    from airflow_changefeed.sources.base import FeedSource

#: The end up to which a task consumes.
UNTIL = ("head", "window_end")
#: Shortest and longest pause between two looks whether others have given shards back.
_LOOK_SECONDS = (0.1, 5.0)


class ChangefeedConsumeOperator(ReportsLineage, WaitsForWindow, NamesConnections, BaseOperator):
    """
    Consume a feed's events with a handler, exactly once where its work is in the feed's own database.

    The handler is called with ``(event, connection)``, or with a list of events if ``batch`` is set, in the
    transaction that consumes them. What the handler writes with the connection, and the consumption, commit
    or roll back together. If the handler works elsewhere, an event may come again after a crash, with the
    same ``event.id``.

    A task that is asked to stop (``SIGTERM``) ends between two events and fails; its retry continues there.

    Tasks and processes of one consumer share its shards; no two of them work on the same shard. The consumer
    must exist (``airflow-changefeed consumer create``, or ``create_consumer``). The result (XCom) is
    ``{"consumer", "feed", "events", "parked", "until", "cursors"}``.

    :param feed: name of the feed. (templated)
    :param consumer: name of the consumer. (templated)
    :param handler: a callable, ``package.module:function``, or ``procedure:schema.name`` on SQL Server, which
        returns 0 when the event is done.
    :param until: ``head``: all events that are committed when the task begins; events of shards that another
        process consumes at the time are left to that process. ``window_end``: the events before the end of
        the run's window. The task waits for that end and seals the feed first. It fails while one of these
        events is a dead letter, or is in a shard that other processes still hold after ``register_timeout``.
    :param wait_timeout: how long to wait for the window's end by the database's clock, a ``timedelta``,
        seconds, or a text such as ``2h``: up to a minute in the task, and longer deferred. A window that ends
        later is refused at once. 0 never defers.
    :param batch: what one call handles: ``1`` (an event), a number of events, or ``transaction`` (all events
        of the transaction that made them; captures only).
    :param shards: shards to consume; None for all. (templated)
    :param handler_timeout: seconds that one call of the handler may take; None for no limit.
    :param emit_timeout: seconds after which another process takes over a shard, if this process has not asked
        for an event or consumed since.
    :param register_timeout: seconds to wait while other processes hold all shards; with
        ``until="window_end"``, while they hold shards whose events are not all consumed. None waits forever.
    :param changefeed_conn_id: Airflow connection of the feed's database. (templated)
    """

    template_fields: Sequence[str] = ("feed", "consumer", "shards", "changefeed_conn_id")
    ui_color = "#e0ecd8"

    def __init__(
        self,
        *,
        feed: str,
        consumer: str,
        handler: Callable[..., object] | str,
        until: str = "head",
        wait_timeout: timedelta | float | str = WAIT_TIMEOUT,
        batch: int | str = 1,
        shards: Sequence[Any] | None = None,
        handler_timeout: float | None = None,
        emit_timeout: float = 10.0,
        register_timeout: float | None = 3600.0,
        changefeed_conn_id: str = ChangefeedHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.feed = feed
        self.consumer = consumer
        self.handler = handler
        self.until = until
        self.wait_timeout = wait_timeout
        self.batch = batch
        self.shards = shards
        self.handler_timeout = handler_timeout
        self.emit_timeout = emit_timeout
        self.register_timeout = register_timeout
        self.changefeed_conn_id = changefeed_conn_id
        self._check()

    def _check(self) -> None:
        problems = []
        handler: object = self.handler
        if not callable(handler) and not isinstance(handler, str):
            problems.append(f"handler must be a callable or its name, not {handler!r}")
        if isinstance(handler, str):
            try:
                check_handler(handler)
            except HandlerError as error:
                problems.append(error.message)
        check_arguments(
            self,
            (check_name, "feed", self.feed),
            (check_consumer_name, self.consumer),
            (read_value, "shards", self.shards, parse_shards),
            values={
                "until": one_of(UNTIL),
                "wait_timeout": WAIT_LENGTH,
                "batch": _batch,
                **{name: OPTIONS[name] for name in ("handler_timeout", "emit_timeout", "register_timeout")},
            },
            problems=problems,
        )

    @reports_errors
    def execute(self, context: Context) -> dict[str, Any]:
        """Consume."""
        self._check()
        window = self._window(context)
        source = ChangefeedHook(self.changefeed_conn_id).source()
        try:
            if window is not None:
                self._wait_until_ended(window, source)
            end = window.end if window else None
            return self._consume(source, end, self.bound_handler(context), run_name(context))
        finally:
            source.close()

    def planned_lineage(self) -> Lineage:
        """Return the feed; what the handler writes is its own."""
        return self._lineage_with()

    def _lineage_with(self, **window: str) -> Lineage:
        feed = connection_dataset(self.changefeed_conn_id, self.feed)
        return Lineage((feed,), window={"feed": self.feed, "consumer": self.consumer, **window})

    def _window(self, context: Context) -> Window | None:
        """Return the run's window; None if it consumes to the head."""
        if self.until == "head":
            return None
        window = run_window(context, None, None)
        if window is None:
            raise InvalidWindowError(
                f"task {self.task_id!r} consumes to the end of its run's window, but this run has no "
                "window: use until='head', or trigger the DAG with a logical date, or with params "
                "window_start and window_end"
            )
        return window

    def bound_handler(self, context: Context) -> Callable[..., object] | str:
        """Return what is called for each event."""
        return self.handler

    def _consume(self, source: FeedSource, end: datetime | None, handler: Any, run: str) -> dict[str, Any]:
        from airflow_changefeed.consumers.event import ONE, Batch
        from airflow_changefeed.consumers.run import run_consumer

        shards = parse_shards(self.shards)
        with metrics.timing(
            metrics.SEAL_DURATION if end else metrics.DRAIN_DURATION, self.feed, self.consumer
        ):
            below = _below(source, self.feed, end)
        batch = Batch(transaction=True) if self.batch == "transaction" else Batch(events=whole(1)(self.batch))
        wait = math.inf if self.register_timeout is None else self.register_timeout
        events, parked, deadline = 0, 0, time.monotonic() + wait
        while True:
            left = max(0.0, deadline - time.monotonic())
            done = run_consumer(
                source,
                self.consumer,
                self.feed,
                handler,
                batch=ONE if self.batch == 1 else batch,
                at_head=True,
                below=below,
                shards=shards,
                handler_timeout=self.handler_timeout,
                emit_timeout=self.emit_timeout,
                register_timeout=None if left == math.inf else left,
                stop=lambda: self._is_killed,
                by=run,
            )
            events, parked = events + done.events, parked + done.parked
            if end is None or self._is_killed or self._is_complete(source, shards, below, end):
                break
            self._wait_for_others(source, end, deadline)
        self.log.info("Consumed %d events, %d of them failed and were parked", events, parked)
        # Airflow's handler of SIGTERM calls on_kill and nothing else: a task that returns here succeeds.
        if self._is_killed:
            raise StoppedError(
                f"consumer {self.consumer!r} of feed {self.feed!r}: stopped on request after {events} "
                "events, which stay consumed; a retry continues after these events",
                consumer=self.consumer,
                feed=self.feed,
            )
        complete = {} if end is None else dict.fromkeys(("sealedUntil", "frontier"), format_time(end))
        self.keep_lineage(lambda: self._lineage_with(**complete))
        cursors = {shard_text(row.shard): str(row.ulid) for row in source.cursors(self.feed, self.consumer)}
        return {
            "consumer": self.consumer,
            "feed": self.feed,
            "events": events,
            "parked": parked,
            "until": format_time(end or below.time),
            "cursors": cursors,
        }

    def _is_complete(
        self, source: FeedSource, shards: Sequence[Shard] | None, below: Ulid, end: datetime
    ) -> bool:
        """Whether all events below the window's end are consumed; others may hold shards of the rest."""
        dead_letters = [
            dead_letter
            for dead_letter in source.dead_letters(self.feed, self.consumer)
            if dead_letter.ulid < below and (shards is None or dead_letter.shard in shards)
        ]
        if dead_letters:
            numbers = [str(dead_letter.number) for dead_letter in dead_letters[:20]]
            listed = shell("dead-letters list", "--consumer", self.consumer, "--feed", self.feed)
            raise PoisonError(
                f"consumer {self.consumer!r} of feed {self.feed!r}: not all events before "
                f"{format_time(end)} are consumed, because of "
                f"{counted(len(dead_letters), 'dead letter')}. List the dead letters: {listed}. Then "
                f"retry ({shell('dead-letters retry', *numbers)}) or drop them "
                f"({shell('dead-letters drop', *numbers, '--note', '...')}), and clear this task",
                consumer=self.consumer,
                feed=self.feed,
            )
        cursors = {row.shard: row.ulid for row in source.cursors(self.feed, self.consumer)}
        begin = source.consumer(self.consumer, self.feed).begin
        for status in source.shards(self.feed):
            if shards is None or status.shard in shards:
                after = cursors.get(status.shard, begin)
                upto = max(after, below.previous())
                if source.count(self.feed, status.shard, [UlidRange(after, upto)])[0]:
                    return False
        return True

    def _wait_for_others(self, source: FeedSource, end: datetime, deadline: float) -> None:
        """Wait until a lease of others may have expired: of a process that was killed, nobody prolongs it."""
        from airflow_changefeed.consumers.holding import holders

        now, left = source.now(), deadline - time.monotonic()
        held = "; ".join(holders(source, self.consumer, self.feed)) or "no shard is held any more"
        if left <= 0:
            raise LeaseHeldError(
                f"consumer {self.consumer!r} of feed {self.feed!r}: not all events before {format_time(end)} "
                f"are consumed after {self.register_timeout:g} s, because other processes hold their shards "
                f"({held}). Wait longer (register_timeout); a retry checks again",
                consumer=self.consumer,
                feed=self.feed,
            )
        expire = [
            (one.expires - now).total_seconds()
            for one in source.leases(self.feed)
            if one.consumer == self.consumer and one.expires is not None and one.expires > now
        ]
        self.log.info("Waiting for shards that other processes hold: %s", held)
        shortest, longest = _LOOK_SECONDS
        self._pause(min(left, longest, max(shortest, min(expire, default=0.0))))


def _batch(value: Any) -> Any:
    try:
        return value if value == "transaction" else whole(1)(value)
    except ValueError:
        raise ValueError("a number of events, or 'transaction'") from None


def _below(source: FeedSource, feed: str, end: datetime | None) -> Ulid:
    """Return where to stop, exclusive: a window's end, which is sealed, or after what is committed."""
    if end is not None:
        source.seal(feed, end)
        return Ulid.floor(end)
    source.drain(feed)
    heads = [status.head for status in source.shards(feed) if status.head is not None]
    return max(heads, default=Ulid.MIN).next()
