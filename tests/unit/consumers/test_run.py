# SPDX-License-Identifier: Apache-2.0
"""Handlers: what is committed, what is tried again, what stops and what is parked."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from airflow_changefeed.consumers.event import Batch
from airflow_changefeed.consumers.run import Backoff, run_consumer
from airflow_changefeed.core.consumer import Attempt, Consumption, DeadLetterState, OnPoison, Outcome
from airflow_changefeed.core.fault import FaultKind
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.doctor.doctor import examine
from airflow_changefeed.exceptions import InvalidArgumentError, PoisonError, PurgedError, WorkTransactionError
from tests.clocks import after_now
from tests.unit.consumers.feeds import CAPTURE, NAME, PLAIN, Shop
from tests.unit.consumers.runs import SAY, Sayer, log_of, run


def test_each_event_is_handled_and_consumed_together(shop: Shop) -> None:
    """And each attempt is in the log."""
    shop.create()
    shop.insert("a", "b", "c")
    done = run(shop, Sayer())
    assert (done.events, done.transactions, done.failures) == (3, 3, 0)
    assert shop.said() == ["a", "b", "c"]
    assert log_of(shop) == [(Outcome.CONSUMED, 1, 1)] * 3
    assert run(shop, Sayer()).events == 0


def test_what_fails_is_rolled_back_and_tried_again_later_each_time(shop: Shop) -> None:
    """Until it succeeds."""
    shop.create(max_attempts=None)
    shop.insert("a", "b")
    begun = shop.clock()
    done = run(shop, Sayer(a=3), backoff=Backoff(first=1.0, jitter=lambda: 0.0))
    assert (done.events, done.failures) == (2, 3)
    assert shop.said() == ["a", "b"]
    assert shop.clock() - begun == pytest.approx(1 + 2 + 4)
    assert log_of(shop)[:4] == [*((Outcome.FAILED, n, 1) for n in (1, 2, 3)), (Outcome.CONSUMED, 4, 1)]


def test_it_stops_at_an_event_that_failed_too_often(shop: Shop) -> None:
    """It names event, reason and remedy; a restart goes on counting, and begins with the same event."""
    shop.create(max_attempts=3)
    shop.insert("a", "b")
    with pytest.raises(PoisonError, match="cannot do b") as caught:
        run(shop, Sayer(b=9))
    assert caught.value.attempts == 3
    for remedy in ("dead-letters", "--on-poison park"):
        assert remedy in caught.value.message
    again = Sayer(b=1)
    with pytest.raises(PoisonError):
        run(shop, again)
    assert again.calls == ["b"]
    assert run(shop, Sayer()).events == 1
    assert shop.said() == ["a", "b"]


def test_a_parked_event_is_left_behind_and_the_next_ones_are_handled(shop: Shop) -> None:
    """Its window is not complete: the ack stays below it until it is resolved."""
    shop.create(max_attempts=2, on_poison=OnPoison.PARK)
    shop.insert("a", "b", "c")
    done = run(shop, Sayer(b=9))
    assert (done.events, done.parked, shop.said()) == (2, 1, ["a", "c"])
    (dead_letter,) = shop.source.dead_letters(CAPTURE)
    assert (dead_letter.attempts, dead_letter.reason) == (2, "ValueError: cannot do b")
    (row,) = shop.source.cursors(CAPTURE, NAME)
    assert row.ack < dead_letter.ulid < row.ulid


def test_a_letter_that_is_to_be_retried_goes_through_the_handler_again(shop: Shop) -> None:
    """It is parked again when it fails, and done when it does not."""
    shop.create(max_attempts=1, on_poison=OnPoison.PARK)
    shop.insert("a", "b")
    run(shop, Sayer(a=1))
    (dead_letter,) = shop.source.dead_letters(CAPTURE)
    shop.source.resolve_dead_letter(dead_letter.number, DeadLetterState.RETRY, by="test")
    assert run(shop, Sayer(a=1)).parked == 1
    (again,) = shop.source.dead_letters(CAPTURE)
    assert (again.state, again.attempts) == (DeadLetterState.PARKED, 2)
    shop.source.resolve_dead_letter(dead_letter.number, DeadLetterState.RETRY, by="test")
    assert run(shop, Sayer()).events == 1
    assert shop.source.dead_letters(CAPTURE) == []
    assert shop.said() == ["b", "a"]
    (row,) = shop.source.cursors(CAPTURE, NAME)
    assert row.ack == row.ulid


def test_a_letter_whose_event_was_purged_can_only_be_dropped(shop: Shop) -> None:
    """The error says so, and the doctor before; then the consumer goes on."""
    shop.create(max_attempts=1, on_poison=OnPoison.PARK)
    shop.insert("a", "b")
    run(shop, Sayer(a=1))
    (dead_letter,) = shop.source.dead_letters(CAPTURE)
    shop.source.set_up_feed(CAPTURE, max_hold=timedelta(milliseconds=1))
    shop.source.seal(CAPTURE, after_now(shop.source))
    shop.source.purge(CAPTURE, shop.source.now())
    (fault,) = [one for one in examine(shop.source).faults if one.kind is FaultKind.DEAD_LETTER]
    assert "The events of 1 of them were purged, so these dead letters can only be dropped" in fault.what
    shop.source.resolve_dead_letter(dead_letter.number, DeadLetterState.RETRY, by="test")
    with pytest.raises(PurgedError, match=rf"dead-letters drop {dead_letter.number} --note"):
        run(shop, Sayer())
    shop.source.resolve_dead_letter(dead_letter.number, DeadLetterState.DROPPED, by="test", note="gone")
    shop.insert("c")
    assert run(shop, Sayer()).events == 1


def test_a_letter_is_taken_on_while_the_consumer_runs(shop: Shop) -> None:
    """It learns of it when it prolongs its leases."""
    shop.create(max_attempts=1, on_poison=OnPoison.PARK)
    shop.insert("a")
    run(shop, Sayer(a=1))
    (dead_letter,) = shop.source.dead_letters(CAPTURE)
    stop = threading.Event()

    def meanwhile(number: int) -> None:
        if number == 0:
            shop.source.resolve_dead_letter(dead_letter.number, DeadLetterState.RETRY, by="test")
        if number > 60:
            stop.set()

    shop.clock.meanwhile = meanwhile
    assert run(shop, Sayer(), at_head=False, stop=stop).events == 1
    assert shop.said() == ["a"]


def test_a_handler_may_take_a_month(shop: Shop) -> None:
    """And not longer than a century."""
    shop.create()
    assert run(shop, Sayer(), handler_timeout=30 * 86_400.0).events == 0
    with pytest.raises(InvalidArgumentError, match="handler_timeout must be a number of seconds above 0"):
        run(shop, Sayer(), handler_timeout=1e12)


def test_a_run_can_park_what_the_settings_would_stop_at(shop: Shop) -> None:
    """The remedy that the error names."""
    shop.create(max_attempts=1)
    shop.insert("a", "b")
    assert run(shop, Sayer(a=9), on_poison=OnPoison.PARK).parked == 1


def test_a_batch_that_fails_is_taken_apart(shop: Shop) -> None:
    """Only the event that fails is parked; what comes after it is a batch again."""
    shop.create(max_attempts=2, on_poison=OnPoison.PARK)
    shop.insert(*"abcdefgh")
    handler = Sayer(c=9)
    done = run(shop, handler, batch=Batch(events=4))
    assert handler.calls == [[*"abcd"], ["a"], ["b"], ["c"], ["c"], ["d"], [*"efgh"]]
    assert (done.events, done.parked, shop.said()) == (7, 1, list("abdefgh"))


def test_a_transaction_is_handled_whole_and_parked_whole(shop: Shop) -> None:
    """Never in parts."""
    shop.create(max_attempts=2, on_poison=OnPoison.PARK)
    for texts in ("a", "bcd", "ef"):
        shop.insert(*texts)
    handler = Sayer(c=9)
    done = run(shop, handler, batch=Batch(transaction=True))
    assert handler.calls == [["a"], [*"bcd"], [*"bcd"], [*"ef"]]
    assert (done.parked, shop.said()) == (3, list("aef"))
    assert len(shop.source.dead_letters(CAPTURE)) == 3


def test_only_what_failed_is_parked(shop: Shop) -> None:
    """Also where a run that is to end soon takes a part of a batch."""
    shop.create(max_attempts=1, on_poison=OnPoison.PARK)
    shop.insert(*"abcde")
    assert run(shop, Sayer(a=9), batch=Batch(events=5), max_events=1).parked == 1
    assert [dead_letter.reason for dead_letter in shop.source.dead_letters()] == ["ValueError: cannot do a"]
    assert run(shop, Sayer(), batch=Batch(events=5)).events == 4


def test_a_transaction_of_a_plain_feed_is_refused_before_anything_is_done(shop: Shop) -> None:
    """With the reason."""
    shop.create(feed=PLAIN)
    shop.order("a")
    with pytest.raises(InvalidArgumentError, match="plain outbox"):
        run_consumer(shop.source, NAME, PLAIN, Sayer(), batch=Batch(transaction=True), at_head=True)
    assert shop.source.leases(PLAIN) == []


def test_a_handler_that_commits_stops_the_run(shop: Shop) -> None:
    """At once, as trying again would do the same; nothing was consumed, and the log says it."""
    shop.create()
    shop.insert("a")

    def commits(event: Any, connection: sqlite3.Connection) -> None:
        connection.execute(SAY, (str(event.id), "a"))
        connection.commit()

    def rolls_back(event: Any, connection: sqlite3.Connection) -> None:
        connection.rollback()

    def swallows(event: Any, connection: sqlite3.Connection) -> None:
        with suppress(sqlite3.DatabaseError):
            connection.execute("rollback")

    for handler in (commits, rolls_back, swallows):
        with pytest.raises(WorkTransactionError):
            run(shop, handler)
    assert shop.said() == []
    assert [outcome for outcome, *_ in log_of(shop)] == [Outcome.FAILED] * 3


def test_a_handler_that_takes_too_long_is_interrupted(shop: Shop) -> None:
    """That is a failure like others."""
    shop.create(max_attempts=1)
    shop.insert("a")

    def never_returns(event: Any, connection: Any) -> None:
        while True:
            time.sleep(0.01)

    with pytest.raises(PoisonError, match="longer than its"):
        run(shop, never_returns, handler_timeout=0.05)


def test_a_time_limit_outside_the_main_thread_is_refused(shop: Shop) -> None:
    """Nobody could interrupt the handler there."""
    shop.create()
    caught: list[BaseException] = []

    def elsewhere() -> None:
        try:
            run(shop, Sayer(), handler_timeout=1.0)
        except InvalidArgumentError as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


class Overtaken:
    """The outermost edge: a machine that sleeps after it got an event, while another one takes over."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.is_asleep = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shop.source, name)

    def invocations(self, *arguments: Any, **options: Any) -> Any:
        """Sleep once: it is asked between the event and its transaction."""
        if not self.is_asleep:
            self.is_asleep = True
            self.shop.clock.advance(60.0)
            with self.shop.consumer() as other:
                other.get()
        return self.shop.source.invocations(*arguments, **options)


def test_a_lost_lease_counts_as_no_failure(shop: Shop) -> None:
    """Nothing is written, it is in the log as lost, and the run goes on when it can."""
    shop.create(max_attempts=1)
    shop.insert("a", "b")
    handler = Sayer()
    done = run_consumer(
        Overtaken(shop), NAME, CAPTURE, handler, at_head=True, register_timeout=0.0, pace=shop.pace()
    )
    assert (done.events, done.lost, done.failures) == (2, 1, 0)
    assert handler.calls == ["a", "a", "b"]
    assert shop.said() == ["a", "b"]
    assert [outcome for outcome, *_ in log_of(shop)] == [Outcome.LOST, Outcome.CONSUMED, Outcome.CONSUMED]


class Overslept:
    """The outermost edge: a machine that sleeps before its second transaction, while another one works."""

    def __init__(self, shop: Shop, meanwhile: Callable[[], object]) -> None:
        self.shop, self.meanwhile = shop, meanwhile
        self.transactions = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shop.source, name)

    def open_session(self, *arguments: Any) -> Any:
        """Open a session whose transactions begin as late."""
        session = self.shop.source.open_session(*arguments)
        begin = session.transaction

        def late() -> Any:
            self.transactions += 1
            if self.transactions == 2:
                self.meanwhile()
            return begin()

        session.transaction = late  # type: ignore[method-assign]
        return session


@pytest.mark.parametrize("lost", ["while it waits", "while it works"])
def test_failures_are_counted_over_all_that_held_the_shard(shop: Shop, lost: str) -> None:
    """One that gets its shard back does not try an event more often than the settings allow."""
    shop.create(max_attempts=3, on_poison=OnPoison.PARK)
    shop.insert("a", "b")

    def another() -> None:
        shop.clock.meanwhile = lambda number: None
        shop.clock.advance(60.0)
        stop = threading.Event()

        def fails(event: Any, connection: Any) -> None:
            stop.set()
            raise ValueError("cannot either")

        assert run(shop, fails, stop=stop).failures == 1

    source: Any = Overslept(shop, another if lost == "while it works" else lambda: None)
    if lost == "while it waits":
        shop.clock.meanwhile = lambda number: another()

    def handler(event: Any, connection: Any) -> None:
        connection.execute(SAY, (str(event.id), event.new["data"]))
        is_late = lost == "while it works" and source.transactions == 2
        if event.new["data"] == "a" and not is_late:
            raise ValueError("cannot do a")

    done = run_consumer(source, NAME, CAPTURE, handler, at_head=True, register_timeout=0.0, pace=shop.pace())
    assert (done.events, done.parked, shop.said()) == (1, 1, ["b"])
    failed = [number for outcome, number, _ in log_of(shop) if outcome is Outcome.FAILED]
    assert failed == [1, 2, 3]
    assert shop.source.dead_letters(CAPTURE)[0].attempts == 3
    assert done.lost == (1 if lost == "while it works" else 0)


def test_what_follows_an_event_that_another_has_handled_is_not_parked_for_it(shop: Shop) -> None:
    """It failed too often, but its shard was lost before it could be parked."""
    shop.create(max_attempts=1, on_poison=OnPoison.PARK)
    shop.insert("a", "b")

    class Slow(Overslept):
        """Sleeps behind the first entry of its log."""

        def open_session(self, *arguments: Any) -> Any:
            session = shop.source.open_session(*arguments)
            log = session.log

            def late(*steps: Any, **more: Any) -> None:
                log(*steps, **more)
                session.log = log  # type: ignore[method-assign]
                self.meanwhile()

            session.log = late  # type: ignore[method-assign]
            return session

    def another() -> None:
        shop.clock.advance(60.0)
        assert run(shop, Sayer(), max_events=1).events == 1

    source: Any = Slow(shop, another)
    done = run_consumer(
        source, NAME, CAPTURE, Sayer(a=1), at_head=True, register_timeout=0.0, pace=shop.pace()
    )
    assert (done.events, done.failures, done.parked, shop.said()) == (1, 1, 0, ["a", "b"])


def test_a_lease_that_was_lost_counts_as_no_failure(shop: Shop) -> None:
    """Not of a process that has ended since, either: the event may fail as often as the settings allow."""
    shop.create(max_attempts=2, on_poison=OnPoison.PARK)
    shop.insert("a")
    (event,) = shop.source.read_feed(CAPTURE, 0, Ulid.MIN)
    lost = Attempt(event.ulid, event.ulid, 1, 1, shop.source.now(), Outcome.LOST, "gone")
    session = shop.source.open_session(NAME, CAPTURE)
    session.log([Consumption(0, event.ulid, 0, 0, 1.0, lost)], holder="another")
    done = run(shop, Sayer(a=1))
    assert (done.events, done.failures, done.parked) == (1, 1, 0)


def test_the_log_is_purged_by_age(shop: Shop) -> None:
    """As the consumer's settings say."""
    shop.create(keep_log=timedelta(hours=1))
    shop.insert("a")
    run(shop, Sayer())
    shop.later(hours=2)
    shop.insert("b")
    run(shop, Sayer())
    assert len(log_of(shop)) == 1
