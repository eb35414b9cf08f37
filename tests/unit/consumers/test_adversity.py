# SPDX-License-Identifier: Apache-2.0
"""What goes wrong between an event and its consumption: leases that go and come back, databases away."""

from __future__ import annotations

import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from airflow_changefeed.consumers.event import Batch
from airflow_changefeed.consumers.run import Backoff, Run, run_consumer
from airflow_changefeed.core.consumer import (
    DeadLetterState,
    OnPoison,
)
from airflow_changefeed.exceptions import (
    ConsumerNotFoundError,
    LeaseLostError,
    ShardNotFoundError,
    SourceUnavailableError,
    WorkTransactionError,
)
from tests.unit.consumers.feeds import CAPTURE, NAME, Shop

SAY = "insert into audit values (?, ?)"


def _say(event: Any, connection: sqlite3.Connection) -> None:
    connection.execute(SAY, (str(event.id), event.new["data"]))


def _run(shop: Shop, handler: Any, source: Any = None, **options: Any) -> Run:
    given = {"at_head": True, "register_timeout": 0.0, "pace": shop.pace(), **options}
    return run_consumer(source or shop.source, NAME, CAPTURE, handler, **given)


def test_events_got_under_an_older_lease_are_not_consumed_by_a_newer_one(shop: Shop) -> None:
    """One that lost its shard, and got it back, does not commit what the other one did meanwhile."""
    shop.create()
    shop.insert("a", "b")
    with shop.consumer(emit_timeout=3.0) as first:
        first.begin()
        done = first.get().new["data"]
        first.next()
        shop.clock.advance(4.0)
        with shop.consumer() as second:
            assert second.get().new["data"] == done
            second.consume()
        first.poll()
        first.connection.execute(SAY, ("1", done))
        with pytest.raises(LeaseLostError):
            first.commit()
        assert shop.said() == []
        assert first.get().new["data"] == "b"


def test_an_event_got_under_an_older_lease_cannot_be_consumed(shop: Shop) -> None:
    """Waiting got the shard back, behind the event that another one has consumed."""
    shop.create()
    shop.insert("a", "b")
    with shop.consumer(emit_timeout=3.0) as first:
        first.get()
        shop.clock.advance(4.0)
        with shop.consumer() as second:
            second.get()
            second.consume()
        first.pause(0.5)
        assert first.shards == [0]
        with pytest.raises(LeaseLostError, match="lost the shard"):
            first.consume()
        assert first.get().new["data"] == "b"


def test_a_batch_whose_shard_goes_while_it_waits_for_more_is_nobodys(shop: Shop) -> None:
    """The rest is handled by who holds it then."""
    shop.create()
    for shard in range(2):
        shop.insert(f"{shard}", shard=shard)

    def overtake(number: int) -> None:
        if number == 0:
            shop.later(seconds=60.0)
            shop.source.acquire_leases(NAME, CAPTURE, [0, 1], holder="other", seconds=3600.0)

    shop.clock.meanwhile = overtake
    with shop.consumer(emit_timeout=3.0) as consumer:
        assert consumer.get_batch(Batch(events=5, seconds=5.0), 0.0) == []
        assert consumer.shards == []


def test_a_shard_that_waits_for_more_events_is_not_given_away(shop: Shop) -> None:
    """Whoever waits gets another one."""
    shop.create()
    for shard in range(2):
        shop.insert(f"{shard}", shard=shard)
    with shop.consumer(emit_timeout=3.0) as consumer:
        shop.source.acquire_leases(NAME, CAPTURE, [0, 1], holder="waits", seconds=60.0)
        # The second one's turn: the last is given first.
        consumer.get()
        consumer.consume()
        (event,) = consumer.get_batch(Batch(events=5, seconds=1.5), 0.0)
        assert consumer.shards == [event.shard] == [1]
        consumer.consume()


class Cut:
    """The outermost edge: a database that does not answer, whatever it is asked, from some call on."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.is_away = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.source, name)
        if not callable(found):
            return found

        def ask(*arguments: Any, **options: Any) -> Any:
            if self.is_away:
                raise SourceUnavailableError("the database is away")
            return found(*arguments, **options)

        return ask


def test_a_database_that_is_away_for_longer_than_a_lease_is_waited_for(shop: Shop) -> None:
    """Also where leases are due to be prolonged before the next attempt."""
    shop.create(max_attempts=1)
    shop.insert("a", "b")
    cut = Cut(shop.source)

    def come_back(number: int) -> None:
        if cut.is_away and number > 40:
            cut.is_away = False

    shop.clock.meanwhile = come_back

    def handler(event: Any, connection: sqlite3.Connection) -> None:
        _say(event, connection)
        cut.is_away = shop.clock.waits == 0

    done = _run(
        shop, handler, cut, emit_timeout=3.0, at_head=False, max_events=2, pace=shop.pace(page_size=1)
    )
    assert (done.events, done.failures, shop.said()) == (2, 0, ["a", "b"])


def test_whoever_waits_for_its_turn_outlives_a_database_that_is_away(shop: Shop) -> None:
    """Else an outage would end all that stand by."""
    shop.create()
    shop.insert("a")
    waits = []

    class Blinking:
        """The outermost edge: a database that does not answer for a while."""

        def __getattr__(self, name: str) -> Any:
            return getattr(shop.source, name)

        def acquire_leases(self, *arguments: Any, **options: Any) -> Any:
            waits.append(shop.clock())
            if len(waits) <= 3:
                raise SourceUnavailableError("the database is away")
            return shop.source.acquire_leases(*arguments, **options)

    assert _run(shop, _say, Blinking()).events == 1
    assert waits == sorted(set(waits))
    waits.clear()
    backoff = Backoff(outages=2)
    with pytest.raises(SourceUnavailableError):
        _run(shop, _say, Blinking(), backoff=backoff)


def test_a_consumer_that_is_dropped_while_it_runs_blames_no_event(shop: Shop) -> None:
    """It stops, and nothing of it is left for one of its name that comes later."""
    shop.create(max_attempts=1, on_poison=OnPoison.PARK)
    shop.insert("a")
    shop.insert("b", shard=1)
    source = shop.source
    shards = []

    class Dropping:
        """The outermost edge: somebody who drops the consumer between the event and its transaction."""

        def __getattr__(self, name: str) -> Any:
            return getattr(source, name)

        def invocations(self, *arguments: Any, **options: Any) -> Any:
            found = source.invocations(*arguments, **options)
            shards.append(options["shard"])
            if len(shards) == 2:
                source.drop_consumer(NAME, CAPTURE)
            return found

    with pytest.raises((ShardNotFoundError, ConsumerNotFoundError)):
        _run(shop, _say, Dropping())
    assert shop.said() == ["a"]
    shop.create()
    assert shop.source.invocations(CAPTURE, NAME) == []


def test_a_letter_that_is_dropped_while_it_waits_for_its_turn_is_passed_over(shop: Shop) -> None:
    """The run goes on with what comes behind it."""
    shop.create(max_attempts=1, on_poison=OnPoison.PARK)
    shop.insert("a")

    def fails(event: Any, connection: Any) -> None:
        raise ValueError("no")

    assert _run(shop, fails).parked == 1
    shop.insert("b")
    (dead_letter,) = shop.source.dead_letters(CAPTURE)
    shop.source.resolve_dead_letter(dead_letter.number, DeadLetterState.RETRY, by="anna")

    def drop_once() -> bool:
        if shop.source.dead_letters(CAPTURE) and shop.source.leases(CAPTURE)[0].holder:
            shop.source.resolve_dead_letter(dead_letter.number, DeadLetterState.DROPPED, by="anna")
        return False

    done = _run(shop, _say, stop=drop_once)
    assert (done.events, done.parked, shop.said()) == (1, 0, ["b"])


def test_a_time_limit_that_was_caught_is_a_failure_all_the_same(shop: Shop) -> None:
    """What a handler does after its time is not consumed."""
    shop.create(max_attempts=1, on_poison=OnPoison.PARK)
    shop.insert("a")

    def catches(event: Any, connection: sqlite3.Connection) -> None:
        _say(event, connection)
        for _ in range(2):
            try:
                while True:
                    time.sleep(0.01)
            except Exception:  # noqa: S112 - as bad handlers do
                continue

    done = _run(shop, catches, handler_timeout=0.05)
    assert (done.events, done.parked, shop.said()) == (0, 1, [])


@contextmanager
def _alarm(seconds: float, rung: list[int]) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_time_limit_leaves_another_alarm_as_it_was(shop: Shop) -> None:
    """That of a task's execution_timeout, whether it is due before or after the handler's."""
    shop.create()
    shop.insert("a")
    rung: list[int] = []
    with _alarm(60.0, rung):
        _run(shop, _say, handler_timeout=5.0)
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left <= 60.0
        assert not rung
    shop.insert("b")

    def waits(event: Any, connection: sqlite3.Connection) -> None:
        _say(event, connection)
        while not rung:
            time.sleep(0.01)

    with _alarm(0.05, rung):
        assert _run(shop, waits, handler_timeout=60.0).events == 1
    assert rung == [1]


@pytest.mark.parametrize(
    "sql",
    [
        "create table leaked (id integer)",
        "with one(id) as (select 1) insert into audit select id, 'leaked' from one",
        "insert into audit values ('1', 'leaked')",
    ],
)
def test_nothing_is_written_after_an_error_that_ended_the_transaction(shop: Shop, sql: str) -> None:
    """Not even by statements before which the driver begins none."""
    shop.create()
    shop.insert("a")
    shop.connection.execute(SAY, ("0", "there"))

    def swallows(event: Any, connection: sqlite3.Connection) -> None:
        for statement in ("insert or rollback into audit values ('1', 'there')", sql):
            with suppress(sqlite3.Error):
                connection.execute(statement)

    with pytest.raises(WorkTransactionError):
        _run(shop, swallows)
    assert shop.said() == ["there"]
    assert not shop.connection.execute("select 1 from sqlite_master where name = 'leaked'").fetchall()


@pytest.mark.parametrize("text", ["disk I/O error", "database or disk is full"])
def test_a_database_that_goes_away_in_the_work_blames_no_event(shop: Shop, text: str) -> None:
    """What the handler saw of it is the driver's error; it is tried again when the database is back."""
    shop.create(max_attempts=1, on_poison=OnPoison.PARK)
    shop.insert("a")
    calls = []

    def handler(event: Any, connection: sqlite3.Connection) -> None:
        _say(event, connection)
        calls.append(event)
        if len(calls) == 1:
            raise sqlite3.OperationalError(text)

    done = _run(shop, handler)
    assert (done.events, done.failures, done.parked, shop.said()) == (1, 0, 0, ["a"])
