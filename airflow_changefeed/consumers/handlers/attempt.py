# SPDX-License-Identifier: Apache-2.0
"""One attempt at events: the handler, the consumption, and what becomes of a failure."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from airflow_changefeed.consumers.events.batch import ONE, Batch
from airflow_changefeed.consumers.events.event import FeedEvent
from airflow_changefeed.consumers.handlers.failures import Attempts, reason
from airflow_changefeed.consumers.handlers.functions import Handler, limited
from airflow_changefeed.core.consumer import OnPoison, Outcome
from airflow_changefeed.core.feed import shard_text
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
)

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_changefeed.consumers.consumer import Consumer

log = logging.getLogger(__name__)


@dataclass
class Run:
    """
    What a run of a consumer did.

    :param events: that were consumed, with dead letters that succeeded; not those that were parked.
    :param transactions: in which they were consumed.
    :param failures: attempts that failed.
    :param parked: events that became dead letters, or stayed one.
    :param lost: transactions that were rolled back as the lease was another one's.
    """

    events: int = 0
    transactions: int = 0
    failures: int = 0
    parked: int = 0
    lost: int = 0


@dataclass(frozen=True)
class Backoff:
    """
    How long to wait after failures.

    :param first: seconds after the first one; twice as long after each further one.
    :param longest: seconds at most.
    :param outages: how often a run that ends by itself tries again to reach a database that is away.
    :param jitter: gives 0 to 1: up to half of the wait is left out, so that many do not come back at once.
    """

    first: float = 0.5
    longest: float = 60.0
    outages: int = 5
    jitter: Callable[[], float] = field(default=random.random)

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.longest:
            raise InvalidArgumentError(
                f"backoff: first must be 0 to longest seconds, not {self.first} of {self.longest}"
            )

    def seconds(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row."""
        whole = min(self.longest, self.first * 2.0 ** min(failures - 1, 60))
        return whole * (1 - self.jitter() / 2)


class HandlerAttempt:
    """
    Attempts at events, one after the other.

    :param timeout: seconds that the handler has; None for no end.
    :param on_poison: what is done with what failed too often.
    """

    def __init__(
        self,
        consumer: Consumer,
        function: Handler,
        attempts: Attempts,
        batch: Batch,
        done: Run,
        backoff: Backoff,
    ) -> None:
        self._consumer = consumer
        self._function = function
        self._attempts = attempts
        self._batch = batch
        self._done = done
        self._backoff = backoff
        self._singles = 0
        #: What the handler raised, as it raised it.
        self._raised: Exception | None = None
        #: The last error whose traceback was logged.
        self._traced: str | None = None
        self.timeout: float | None = None
        self.on_poison = OnPoison.STOP

    def next_batch(self) -> Batch:
        """Return what to handle next: events one by one, while a batch that failed is taken apart."""
        return ONE if self._singles else self._batch

    def attempt(self, events: list[FeedEvent]) -> float:
        """
        Handle and consume events, or note that it failed.

        :return: seconds to wait before the next attempt.
        """
        started_at = self._attempts.now()
        shard, token = events[0].shard, self._consumer.token(events[0].shard)
        try:
            self._handle(events, started_at)
        except LeaseLostError as error:
            self._lost(events, started_at, token, error)
            return 0.0
        except (WorkTransactionError, HandlerError) as error:
            self._consumer.log(shard, self._attempts.attempt(events, started_at, error), token)
            self._done.failures += 1
            raise
        except (StaleVersionError, ConsumerUseError):
            raise
        except Exception as error:
            if not self._is_to_blame(error):
                return self._pass_over(events, error)
            return self._failed(events, started_at, token, error)
        self._done.events += len(events)
        self._done.transactions += 1
        self._attempts.done(events)
        self._singles = max(0, self._singles - len(events))
        return 0.0

    def _handle(self, events: list[FeedEvent], started_at: datetime) -> None:
        given = events[0] if self._batch is ONE else events
        attempt = self._attempts.attempt(events, started_at)
        self._raised = None
        with self._consumer.transaction(attempt=attempt) as connection:
            try:
                with limited(self.timeout):
                    self._function(given, connection)
            except Exception as error:
                self._raised = error
                raise
            self._consumer.next(len(events))

    def _is_to_blame(self, error: Exception) -> bool:
        """
        Whether the work failed, and not what we do around it.

        Its lock time-outs and deadlocks are named by us on their way, and are its failures all the same; that
        the database went away meanwhile is none.
        """
        if self._raised is None:
            return not isinstance(error, ChangefeedError)
        return error is self._raised or not isinstance(error, SourceUnavailableError)

    def _pass_over(self, events: list[FeedEvent], error: Exception) -> float:
        """Raise what nobody here can do anything about; a letter may be resolved while it waits its turn."""
        if isinstance(error, DeadLetterError) and events[0].dead_letter is not None:
            log.warning("%s; going on with what comes next", error)
            return 0.0
        raise error

    def _lost(self, events: list[FeedEvent], started_at: datetime, token: int, error: LeaseLostError) -> None:
        log.warning("%s", error)
        self._done.lost += 1
        self._singles = 0
        attempt = self._attempts.attempt(events, started_at)
        attempt = replace(attempt, outcome=Outcome.LOST, error=reason(error))
        self._consumer.log(events[0].shard, attempt, token)
        self._attempts.forget(events[0].shard)

    def _failed(self, events: list[FeedEvent], started_at: datetime, token: int, error: Exception) -> float:
        attempt = self._attempts.attempt(events, started_at, error)
        # Where the database is away the log cannot be written, and the attempt does not count.
        self._consumer.log(events[0].shard, attempt, token)
        self._attempts.failed(events)
        self._done.failures += 1
        log.warning(
            "consumer %s, feed %s, shard %s: attempt %d at event %s failed: %s",
            self._consumer.info.spec.consumer,
            self._consumer.info.spec.feed,
            shard_text(events[0].shard),
            attempt.number,
            events[0].id,
            attempt.error,
            # Once for the same error: a hundred tracebacks of one handler hide what else is said.
            exc_info=error if attempt.error != self._traced else None,
        )
        self._traced = attempt.error
        if len(events) > 1 and not self._batch.transaction:
            # Which of them failed is not known: each for itself, so that only that one is to blame.
            self._singles = len(events)
            return 0.0
        limit = self._consumer.info.spec.max_attempts
        if events[0].dead_letter is not None or (limit is not None and attempt.number >= limit):
            return self._poisoned(events, attempt.number, error)
        return self._backoff.seconds(attempt.number)

    def _poisoned(self, events: list[FeedEvent], attempts: int, error: Exception) -> float:
        dead_letter, spec = events[0].dead_letter, self._consumer.info.spec
        if dead_letter is None and self.on_poison is OnPoison.STOP:
            raise PoisonError(
                f"consumer {spec.consumer!r} of feed {spec.feed!r} stopped: event {events[0].id} of shard "
                f"{shard_text(events[0].shard)} failed {attempts} times, last with {reason(error)}. Nothing "
                "of it was committed. Repair what makes it fail and run the consumer again, which begins "
                "with this event; or go on without it: run once with on_poison park (airflow changefeed "
                "consume --on-poison park), and see airflow changefeed dead-letters list",
                consumer=spec.consumer,
                feed=spec.feed,
                shard=events[0].shard,
                ulid=events[0].id,
                attempts=attempts,
            ) from error
        # What is not a transaction is one event here: a batch was taken apart before.
        got = self._consumer.get_batch(self._batch if self._batch.transaction else ONE, 0.0)
        if [event.id for event in got] != [event.id for event in events]:
            # The lease went meanwhile; whoever has it goes on.
            return 0.0
        self._consumer.park(reason(error), attempts)
        self._attempts.done(events)
        self._singles = max(0, self._singles - len(events))
        self._done.parked += len(events)
        return 0.0
