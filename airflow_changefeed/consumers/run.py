# SPDX-License-Identifier: Apache-2.0
"""
Run a handler for each event of a feed, like Comdb2's Lua triggers: attempts, retries, failures.

The handler's writes through the given connection and the consumption are one transaction.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from traceback import format_exception
from typing import Any

from airflow_changefeed.consumers.consumer import Consumer
from airflow_changefeed.consumers.event import ONE, Attempts, Batch, FeedEvent, ended, first_unreadable
from airflow_changefeed.consumers.handlers import Handler, checked_timeout, limited, load_handler
from airflow_changefeed.consumers.settings import OPTIONS, Pace
from airflow_changefeed.core.consumer import Attempt, OnPoison, Outcome
from airflow_changefeed.core.fault import park_command, shell
from airflow_changefeed.core.feed import counted, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import number, read_value, read_values, whole
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConsumerUseError,
    DeadLetterError,
    HandlerError,
    InvalidArgumentError,
    LeaseHeldError,
    LeaseLostError,
    PoisonError,
    SourceUnavailableError,
    StaleVersionError,
    TransientError,
    WorkTransactionError,
    described,
    visible,
)
from airflow_changefeed.sources.base import FeedSource

log = logging.getLogger(__name__)

#: Least seconds after which a shard is tried again that would stop the run, if others still have events.
_STOPPED = 1.0


@dataclass
class Run:
    """
    Result of a consumer run.

    :param events: consumed events, including dead letters that succeeded; not parked ones.
    :param transactions: in which they were consumed.
    :param failures: attempts that failed.
    :param parked: events that became dead letters, or stayed one.
    :param lost: transactions rolled back because another consumer held the lease.
    """

    events: int = 0
    transactions: int = 0
    failures: int = 0
    parked: int = 0
    lost: int = 0


@dataclass(frozen=True)
class Backoff:
    """
    How long to wait after a failure.

    :param first: seconds after the first failure; doubled after each further one.
    :param longest: seconds at most.
    :param outages: how often a run with an end condition retries an unreachable database.
    :param jitter: returns 0 to 1; the wait is shortened by up to half, so that many consumers do not
        retry at once.
    """

    first: float = 0.5
    longest: float = 60.0
    outages: int = 5
    jitter: Callable[[], float] = field(default=random.random)

    def __post_init__(self) -> None:
        problems = read_values(self, {"longest": number(0), "outages": whole(0)})
        problems += read_values(self, {"first": number(0, self.longest, "seconds")} if not problems else {})
        InvalidArgumentError.collect("backoff", problems)

    def seconds(self, failures: int) -> float:
        """Return how long to wait after a number of consecutive failures."""
        whole = min(self.longest, self.first * 2.0 ** min(failures - 1, 60))
        return whole * (1 - self.jitter() / 2)


def _is_failure(error: BaseException) -> bool:
    """
    Whether a handler failed; what else it raises asks the process to end: an interrupt, an exit, a timeout.

    No ``Exception``, but failures all the same: a cancelled call of asyncio, and a panic of a Rust library.
    """
    is_panic = (type(error).__module__, type(error).__name__) == ("pyo3_runtime", "PanicException")
    return is_panic or isinstance(error, (Exception, asyncio.CancelledError))


@dataclass
class HandlerAttempt:
    """
    Attempts at events, one after another.

    :param on_poison: what to do with events that failed too often.
    :param timeout: seconds the handler may take; None for no limit.
    """

    _consumer: Consumer
    _function: Handler
    _attempts: Attempts
    _batch: Batch
    _done: Run
    _backoff: Backoff
    _on_poison: OnPoison
    _timeout: float | None
    _singles: int = 0
    #: The handler's exception, unwrapped.
    _raised: BaseException | None = None
    #: The last error whose traceback was logged.
    _traced: str | None = None

    def next_batch(self) -> Batch:
        """Return what to handle next; the events of a failed batch are retried one by one."""
        return ONE if self._singles else self._batch

    def attempt(self, events: list[FeedEvent]) -> float:
        """
        Handle and consume events, or record the failure.

        :return: seconds to wait before the next attempt.
        """
        shard, token = events[0].shard, self._consumer.token(events[0].shard)
        attempt = self._attempts.next(events, token)
        try:
            self._handle(events, attempt)
        except LeaseLostError as error:
            log.warning("%s", error)
            self._done.lost += 1
            self._singles = 0
            self._consumer.log(shard, ended(attempt, Outcome.LOST, error), token)
            return 0.0
        except (WorkTransactionError, HandlerError) as error:
            self._consumer.log(shard, ended(attempt, Outcome.FAILED, error), token)
            self._done.failures += 1
            raise
        except (StaleVersionError, ConsumerUseError):
            raise
        except BaseException as error:
            if not _is_failure(error):
                text = visible(described(error), are_lines=True)
                log.warning("%s: the run ends at event %s: %s", self._who(events), events[0].id, text)
                raise
            if not self._is_to_blame(error):
                if not isinstance(error, DeadLetterError) or events[0].dead_letter is None:
                    raise
                # It may be resolved while it waits its turn.
                log.warning("%s; continuing with the next event", error)
                return 0.0
            if first_unreadable(events) is None:
                return self._failed(events, attempt, token, error)
            # Other shards go on meanwhile, and before the run stops.
            try:
                self._consumer.rest(shard, self._failed(events, attempt, token, error))
            except PoisonError as poison:
                self._consumer.rest(shard, max(self._backoff.longest, _STOPPED), poison)
            return 0.0
        self._done.events += len(events)
        self._done.transactions += 1
        self._attempts.done(shard, token, attempt)
        self._singles = max(0, self._singles - len(events))
        return 0.0

    def _handle(self, events: list[FeedEvent], attempt: Attempt) -> None:
        if (unreadable := first_unreadable(events)) is not None:
            self._raised = unreadable.error
            raise unreadable.error
        given = events[0] if self._batch is ONE else events
        self._raised = None
        with self._consumer.transaction(attempt=attempt) as connection:
            try:
                with limited(self._timeout):
                    self._function(given, connection)
            except BaseException as error:
                self._raised = error
                raise
            self._consumer.next(len(events))

    def _who(self, events: list[FeedEvent]) -> str:
        spec = self._consumer.info.spec
        return visible(f"consumer {spec.consumer}, feed {spec.feed}, shard {shard_text(events[0].shard)}")

    def _is_to_blame(self, error: BaseException) -> bool:
        """
        Whether the handler's work failed, rather than our own code around it.

        Lock timeouts and deadlocks of the work count as its failures although we translate them; a lost
        database does not.
        """
        if self._raised is None:
            return not isinstance(error, ChangefeedError)
        return error is self._raised or not isinstance(error, SourceUnavailableError)

    def _failed(self, events: list[FeedEvent], attempt: Attempt, token: int, error: BaseException) -> float:
        attempt = ended(attempt, Outcome.FAILED, error)
        # If the database is unreachable the log cannot be written, and the attempt does not count.
        self._consumer.log(events[0].shard, attempt, token)
        self._attempts.failed(events[0].shard, token, attempt)
        self._done.failures += 1
        # One traceback per error: a hundred of the same would hide everything else. As text: Airflow's log
        # loses a record whose exception has half a surrogate pair.
        trace = ["\n", *format_exception(error)] if attempt.error != self._traced else []
        log.warning(
            "%s: attempt %d at event %s failed: %s",
            self._who(events),
            attempt.number,
            events[0].id,
            visible("".join([str(attempt.error), *trace]), are_lines=True),
        )
        self._traced = attempt.error
        if len(events) > 1 and not self._batch.transaction:
            # Which event failed is unknown: retry them one by one, so that only the failing one is counted.
            self._singles = len(events)
            return 0.0
        limit = self._consumer.info.spec.max_attempts
        if events[0].dead_letter is not None or (limit is not None and attempt.number >= limit):
            return self._poisoned(events, attempt, token, error)
        return self._backoff.seconds(attempt.number)

    def _poisoned(self, events: list[FeedEvent], attempt: Attempt, token: int, error: BaseException) -> float:
        dead_letter, spec = events[0].dead_letter, self._consumer.info.spec
        if dead_letter is None and self._on_poison is OnPoison.STOP:
            listed = shell("dead-letters list", "--consumer", spec.consumer, "--feed", spec.feed)
            raise PoisonError(
                f"consumer {spec.consumer!r} of feed {spec.feed!r} stopped: event {events[0].id} of "
                f"shard {shard_text(events[0].shard)} failed {counted(attempt.number, 'time')}, last "
                f"with {attempt.error}. Nothing was committed. Fix the cause and run the consumer "
                "again; the consumer starts with this event. To set only this event aside: "
                f"{park_command(spec.consumer, spec.feed)}; parked events are listed by {listed}",
                consumer=spec.consumer,
                feed=spec.feed,
                shard=events[0].shard,
                ulid=events[0].id,
                attempts=attempt.number,
            ) from error
        if first_unreadable(events) is None:
            # Except for transactions, this is a single event: a failed batch was split before.
            got = self._consumer.receive(self._batch if self._batch.transaction else ONE, 0.0)
            if [event.id for event in got] != [event.id for event in events]:
                # The lease was lost; its new holder continues.
                return 0.0
        self._consumer.park(attempt.error or "", attempt.number)
        self._attempts.done(events[0].shard, token, attempt)
        self._singles = max(0, self._singles - len(events))
        self._done.parked += len(events)
        return 0.0


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
        name (:func:`~airflow_changefeed.consumers.handlers.load_handler`).
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
