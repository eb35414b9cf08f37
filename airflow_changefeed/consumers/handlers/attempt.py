# SPDX-License-Identifier: Apache-2.0
"""One attempt at events: run the handler, consume, handle failures."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from traceback import format_exception
from typing import TYPE_CHECKING

from airflow_changefeed.consumers.events.batch import ONE, Batch
from airflow_changefeed.consumers.events.event import FeedEvent
from airflow_changefeed.consumers.events.unreadable import first_unreadable
from airflow_changefeed.consumers.handlers.failures import Attempts, ended
from airflow_changefeed.consumers.handlers.functions import Handler, limited
from airflow_changefeed.core.consumer import Attempt, OnPoison, Outcome
from airflow_changefeed.core.fault import park_command, shell
from airflow_changefeed.core.feed import counted, shard_text
from airflow_changefeed.core.values import number, read_values, whole
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConsumerUseError,
    DeadLetterError,
    HandlerError,
    InvalidArgumentError,
    LeaseLostError,
    PoisonError,
    SourceUnavailableError,
    StaleVersionError,
    WorkTransactionError,
    described,
    visible,
)

if TYPE_CHECKING:
    from airflow_changefeed.consumers.consumer import Consumer

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
                f"consumer {spec.consumer!r} of feed {spec.feed!r} stopped: event {events[0].id} of shard "
                f"{shard_text(events[0].shard)} failed {counted(attempt.number, 'time')}, last with "
                f"{attempt.error}. Nothing was committed. Fix the cause and run the consumer again; it "
                "starts with this event. To set this one event aside: "
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
