# SPDX-License-Identifier: Apache-2.0
"""
Run a handler for each event of a feed, like Comdb2's Lua triggers.

The handler's writes through the given connection and the consumption are one transaction.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from airflow_changefeed.consumers.consumer import Consumer
from airflow_changefeed.consumers.events.batch import ONE, Batch
from airflow_changefeed.consumers.events.event import FeedEvent
from airflow_changefeed.consumers.handlers.attempt import Backoff, HandlerAttempt, Run
from airflow_changefeed.consumers.handlers.failures import Attempts
from airflow_changefeed.consumers.handlers.functions import Handler, checked_timeout, load_handler
from airflow_changefeed.consumers.pace import Pace
from airflow_changefeed.consumers.settings import OPTIONS
from airflow_changefeed.core.consumer import OnPoison
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import read_value
from airflow_changefeed.exceptions import LeaseHeldError, TransientError
from airflow_changefeed.sources.base import FeedSource

log = logging.getLogger(__name__)

#: Seconds per wait for events, after which the stop condition is checked.
_SLICE = 1.0
_PURGE_EVERY = 3600.0

#: An event to set, or a function returning True, to end the run.
Stop = threading.Event | Callable[[], bool]


def run_consumer(
    source: FeedSource,
    name: str,
    feed: str,
    handler: Handler | str,
    *,
    batch: Batch | None = None,
    at_head: bool = False,
    until: datetime | None = None,
    below: Ulid | None = None,
    max_events: int | None = None,
    handler_timeout: float | None = None,
    on_poison: OnPoison | None = None,
    backoff: Backoff | None = None,
    stop: Stop | None = None,
    **options: Any,
) -> Run:
    """
    Run a handler for each event, or each batch, until asked to stop.

    A failure is rolled back, logged as an invocation and retried with growing pauses. A failed batch is
    retried event by event, so that only the failing event is counted; a batch by transaction stays whole.
    After the consumer's ``max_attempts`` the run stops, or parks the failed events and continues. A lost
    lease or an unreachable database is not a failure: the run continues when it can, even while waiting for
    its first shard.

    :param handler: called with an event (for a batch, the list of its events) and the connection; or its
        name (:func:`~airflow_changefeed.consumers.handlers.functions.load_handler`).
    :param batch: what is handled together; None for single events.
    :param at_head: whether to end when no event is left in the held shards.
    :param until: end at this time by the database's clock; None for no limit.
    :param below: exclusive upper bound; events from this ULID on are not read, and with ``at_head`` the
        run ends before them. A transaction that reaches beyond it is cut there.
    :param max_events: end after this many events; None for no limit.
    :param handler_timeout: seconds after which a handler is interrupted, which counts as a failure; main
        thread only. Without it a handler that never returns keeps its transaction open; another consumer
        takes over after ``emit_timeout``, and the first can no longer commit. On a database with a single
        writer nobody can take over, or write, until that process ends. A process has one alarm: if another is
        due first, such as a task's ``execution_timeout``, that one fires.
    :param on_poison: None uses the consumer's settings.
    :param stop: an event or function; checked between batches and each second while waiting.
    :param options: of :class:`~airflow_changefeed.consumers.consumer.Consumer`.
    :raises HandlerError: the handler cannot be found or called; nothing was consumed.
    :raises InvalidArgumentError: options are invalid or not supported by the feed.
    :raises PoisonError: an event failed too often, and the consumer stopped at it.
    :raises WorkTransactionError: the handler ended its transaction; nothing was consumed.
    :raises LeaseHeldError: other consumers held all shards for ``register_timeout``.
    """
    batch = batch or ONE
    max_events = read_value("max_events", max_events, OPTIONS["max_events"])
    handler_timeout = checked_timeout(handler_timeout)
    function = load_handler(handler, source, is_batch=batch is not ONE)
    should_stop = stop.is_set if isinstance(stop, threading.Event) else stop or (lambda: False)
    if isinstance(stop, threading.Event):
        options.setdefault("pace", Pace(wait=stop.wait))
    consumer = Consumer(source, name, feed, **options)
    consumer.check_batch(batch)
    if below is not None:
        consumer.end_below(below)
    backoff, done, spec = backoff or Backoff(), Run(), consumer.info.spec
    try:
        attempts = Attempts(source, spec.feed, spec.consumer, consumer.pace.clock)
        on_poison = on_poison or spec.on_poison
        attempt = HandlerAttempt(
            consumer, function, attempts, batch, done, backoff, on_poison, handler_timeout
        )
        left = math.inf if until is None else (until - source.now()).total_seconds()
        deadline = consumer.pace.clock() + left
        loop = _Loop(source, consumer, attempts, attempt, done, backoff, should_stop, at_head, deadline)
        loop.register()
        return loop.run(max_events)
    finally:
        consumer.leave()


@dataclass
class _Loop:
    _source: FeedSource
    _consumer: Consumer
    _attempts: Attempts
    _attempt: HandlerAttempt
    _done: Run
    _backoff: Backoff
    _should_stop: Callable[[], bool]
    _at_head: bool
    _deadline: float

    def __post_init__(self) -> None:
        self._clock = self._consumer.pace.clock
        self._purge_at = self._clock()

    def _is_over(self) -> bool:
        return self._should_stop() or self._clock() >= self._deadline

    def register(self) -> None:
        """Wait until a shard is held, even while the database is unreachable: standbys wait for hours."""
        outages = 0
        while not self._is_over():
            try:
                self._consumer.register(self._is_over)
                return
            except LeaseHeldError:
                raise
            except TransientError as error:
                wait = self._wait_after(error, outages := outages + 1)
            self._pause(wait)

    def run(self, max_events: int | None) -> Run:
        """Run until asked to stop."""
        outages = 0
        while not self._is_over():
            left = None if max_events is None else max_events - self._done.events - self._done.parked
            if left is not None and left <= 0:
                break
            try:
                rests = self._consumer.rest_seconds
                # What rests is still to come.
                may_end = self._at_head and rests == math.inf
                events = self._next(0.0 if may_end else min(rests, _SLICE), left)
                if not events:
                    if may_end:
                        break
                    outages = 0
                    continue
                wait = self._attempt.attempt(events)
                outages = 0
            except TransientError as error:
                # A database or lease error, not the event's fault.
                wait = self._wait_after(error, outages := outages + 1)
            self._pause(wait)
        return self._done

    def _wait_after(self, error: TransientError, outages: int) -> float:
        """Return how long to wait after an error; raise it if a run with an end has retried often enough."""
        wait = self._backoff.seconds(outages)
        log.warning("%s; retrying in %.1f s", error, wait)
        if self._at_head and outages > self._backoff.outages:
            raise error
        return wait

    def _next(self, timeout: float, left: int | None) -> list[FeedEvent]:
        self._purge_log()
        batch = self._attempt.next_batch()
        events = self._consumer.receive(batch, timeout)
        return events if batch.transaction else events[:left]

    def _purge_log(self) -> None:
        if self._clock() < self._purge_at:
            return
        self._purge_at = self._clock() + _PURGE_EVERY
        spec = self._consumer.info.spec
        before = self._attempts.now() - spec.keep_log
        self._source.purge_invocations(spec.feed, spec.consumer, before=before)

    def _pause(self, seconds: float) -> None:
        """Wait before the next attempt, in slices, to notice a stop."""
        end = self._clock() + seconds
        while not self._is_over() and (left := end - self._clock()) > 0:
            try:
                self._consumer.pause(min(left, _SLICE))
            except TransientError:
                # The leases cannot be renewed now; the next attempt raises the error if it persists.
                self._consumer.pace.wait(min(left, _SLICE))
