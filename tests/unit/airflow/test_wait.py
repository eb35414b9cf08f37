# SPDX-License-Identifier: Apache-2.0
"""Waiting for the end of a window: by the database's clock, asleep or deferred, and never for ever."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.triggers.temporal import DateTimeTrigger
from airflow.sdk import DAG

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.values import floor_to_millisecond, to_milliseconds
from airflow_changefeed.exceptions import NotYetError, StoppedError
from airflow_changefeed.operators.consume import ChangefeedConsumeOperator
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.tasks import waiting as tasks_waiting
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
from airflow_changefeed.version_compat import AirflowFailException, TaskDeferred
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import context
from tests.unit.airflow.feeds import play
from tests.unit.airflow.test_operator import assert_complete, operator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]
MILLISECOND, SECOND, MINUTE = timedelta(milliseconds=1), timedelta(seconds=1), timedelta(minutes=1)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
#: Of the window that the tests export: all events lie before.
END = START + 6 * HOUR
#: Of the waiting for an hour, up to a start of the task.
FIRST_WAIT = {"waits_since": "2013-01-01T05:10:00Z"}


class Waiting:
    """
    A task that exports a window, the database's clock and this machine's, which only move while it sleeps.

    :ivar database: what the database's clock says.
    :ivar speed: of the database's clock.
    :ivar slept: all sleeps.
    :ivar wake: called after each sleep.
    """

    def __init__(self, file: str, path: str) -> None:
        self.file, self.path = file, path
        self.set(timedelta(0))

    def set(self, before_end: timedelta, ahead: timedelta = timedelta(0)) -> None:
        """Set the database's clock to a time before the window's end, and this machine's ahead of it."""
        self.database = END - before_end
        self.machine = self.database + ahead
        self.speed = 1.0
        self.slept: list[timedelta] = []
        self.wake: Callable[[], object] = int

    def time(self) -> float:
        """Return this machine's time."""
        return self.machine.timestamp()

    monotonic = time

    def sleep(self, seconds: float) -> None:
        """Let both clocks move."""
        assert seconds >= 0
        length = timedelta(seconds=seconds)
        self.slept.append(length)
        self.database += length * self.speed
        self.machine += length
        self.wake()

    @property
    def slept_in_all(self) -> timedelta:
        """How long the task has slept."""
        return sum(self.slept, timedelta(0))

    def export(self, **more: Any) -> Any:
        """Run the operator's task."""
        return operator(self.path, local_below=1000, **more).execute(context(START, END))

    def deferred(self, run: Callable[..., Any] | None = None, **more: Any) -> TaskDeferred:
        """Run a task that is expected to defer, and return how it does."""
        with pytest.raises(TaskDeferred) as caught:
            (run or self.export)(**more)
        return caught.value

    def resume(self, kwargs: Any = FIRST_WAIT, **more: Any) -> Any:
        """Let a task go on in another process, as Airflow does when the trigger has fired."""
        task = operator(self.path, local_below=1000, **more)
        return task.resume_execution("execute_complete", {**kwargs, "event": END}, context(START, END))

    def check_complete(self) -> None:
        """Check that the window is exported."""
        assert_complete(self.file, self.path, 6)

    def check_untouched(self) -> None:
        """Check that a task has neither written nor held anything."""
        assert not Path(self.path).exists()
        source = SqliteFeedSource(self.file)
        assert source.cursors(FEED) == []
        assert source.leases() == []
        assert {status.sealed_until for status in source.shards(FEED)} == {None}


@pytest.fixture
def waiting(database: str, path: str, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    """Give a task at the end of its window."""
    made = Waiting(database, path)
    monkeypatch.setattr(tasks_waiting, "time", made)
    monkeypatch.setattr(
        SqliteDatabase, "now_ms", lambda _: to_milliseconds(floor_to_millisecond(made.database))
    )
    return made


def moment(value: TaskDeferred) -> datetime:
    """Return when the trigger fires, by Airflow's clock."""
    assert isinstance(value.trigger, DateTimeTrigger)
    return value.trigger.moment


@pytest.mark.parametrize(
    ("left", "ahead"),
    [
        (timedelta(0), -HOUR),
        (MILLISECOND, timedelta(0)),
        (20 * SECOND, DAY),
        (MINUTE, timedelta(0)),
        (MINUTE, -DAY),
    ],
    ids=str,
)
def test_a_window_that_ends_within_a_minute_is_waited_for_in_the_task(
    waiting: Waiting, left: timedelta, ahead: timedelta
) -> None:
    """By the database's clock, whatever this machine's says; one that ends at this moment not at all."""
    waiting.set(left, ahead)
    waiting.export()
    waiting.check_complete()
    assert left <= waiting.slept_in_all <= (left and left + SECOND)


@pytest.mark.parametrize("ahead", [timedelta(0), DAY, -DAY, timedelta(microseconds=7250)], ids=str)
def test_a_later_end_is_waited_for_without_a_worker(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch, ahead: timedelta
) -> None:
    """The triggerer waits as long as the database's clock says, by Airflow's; nothing is held or open."""
    source = play(monkeypatch)
    waiting.set(50 * MINUTE, ahead)
    value = waiting.deferred()
    assert moment(value) == floor_to_millisecond(END + ahead)
    assert (value.method_name, value.timeout) == ("execute_complete", None)
    assert waiting.slept == []
    assert source.closed.is_set()
    waiting.check_untouched()
    assert json.loads(json.dumps(value.kwargs)) == value.kwargs
    waiting.set(MINUTE + SECOND)
    assert moment(waiting.deferred()) == END


def test_a_resumed_task_begins_anew(waiting: Waiting) -> None:
    """It exports the window; what is wrong by now is refused, and a missing feed before any wait."""
    waiting.set(50 * MINUTE)
    with pytest.raises(AirflowFailException, match=r"FeedNotFoundError.*nyc\.Weather"):
        waiting.export(feed="nyc.Weather")
    value = waiting.deferred()
    waiting.sleep(3000)
    with pytest.raises(AirflowFailException, match=r"ConnectionNotUsableError.*'nowhere'"):
        waiting.resume(value.kwargs, changefeed_conn_id="nowhere")
    waiting.resume(value.kwargs)
    waiting.check_complete()


def test_a_task_that_is_woken_too_early_defers_again(waiting: Waiting) -> None:
    """
    As by a triggerer whose clock is ahead, which would do it again at once: so a minute passes first. Where
    it is a little early, the task sleeps until the end.
    """
    waiting.set(50 * MINUTE)
    assert waiting.deferred().kwargs == FIRST_WAIT
    waiting.sleep(600)
    value = waiting.deferred(waiting.resume)
    assert (moment(value), value.kwargs, waiting.slept_in_all) == (END, FIRST_WAIT, 11 * MINUTE)
    waiting.sleep(37.5 * 60)
    waiting.resume(value.kwargs)
    waiting.check_complete()
    assert waiting.slept_in_all == 50 * MINUTE


def test_the_limit_counts_from_the_tasks_first_start(waiting: Waiting) -> None:
    """A database's clock that is set back again and again does not make a task wait for ever."""
    waiting.set(50 * MINUTE)
    value = waiting.deferred()
    waiting.sleep(3000)
    waiting.database -= 11 * MINUTE
    with pytest.raises(
        AirflowFailException, match=r"ends in 0:11:00 .*1:00:00 at most, and has waited 0:50:00"
    ):
        waiting.resume(value.kwargs)
    waiting.database += 2 * MINUTE
    waiting.deferred(waiting.resume, kwargs=value.kwargs)
    waiting.sleep(3600)
    waiting.resume(value.kwargs)
    waiting.check_complete()


def test_a_minute_is_slept_also_when_the_limit_is_reached(waiting: Waiting) -> None:
    """A database's clock that loses some seconds in an hour fails nothing."""
    waiting.set(HOUR)
    value = waiting.deferred()
    waiting.speed = 0.99
    waiting.sleep(3600)
    waiting.resume(value.kwargs)
    waiting.check_complete()


def test_dag_test_does_not_tell_how_long_was_waited(waiting: Waiting) -> None:
    """It hands on nothing but the trigger's event, to the same object; a later try knows of no wait."""
    waiting.set(50 * MINUTE)
    task = operator(waiting.path, local_below=1000)

    def resume(**kwargs: Any) -> Any:
        return task.resume_execution("execute_complete", kwargs, context(START, END))

    for _ in range(2):
        assert waiting.deferred(resume, event=END).kwargs == FIRST_WAIT
    waiting.deferred(resume, waits_since="2013-01-01T05:05:00Z")
    value = waiting.deferred(lambda: task.execute(context(START, END, attempt=2)))
    assert value.kwargs == {"waits_since": "2013-01-01T05:11:00Z"}
    waiting.sleep(3000)
    resume(event=END)
    waiting.check_complete()


@pytest.mark.parametrize(
    ("wait_timeout", "longest"),
    [(None, HOUR), (2 * HOUR, 2 * HOUR), (90.5, 90.5 * SECOND), (5, MINUTE)],
    ids=str,
)
def test_a_window_that_ends_later_than_wait_timeout_is_refused_at_once(
    waiting: Waiting, wait_timeout: Any, longest: timedelta
) -> None:
    """With what the database's clock says; a minute is always waited."""
    given = {} if wait_timeout is None else {"wait_timeout": wait_timeout}
    waiting.set(longest + MILLISECOND, -3 * MINUTE)
    now = f"{waiting.database:%Y-%m-%dT%H:%M:%S}"
    with pytest.raises(
        AirflowFailException, match=rf"FutureTimeError: .*the database's clock, {now}.*at most"
    ):
        waiting.export(**given)
    assert waiting.slept == []
    waiting.check_untouched()
    waiting.set(longest)
    if longest > MINUTE:
        assert moment(waiting.deferred(**given)) == END
    else:
        waiting.export(**given)


def test_a_window_of_another_century_is_refused_whatever_is_allowed(waiting: Waiting) -> None:
    """And a person who allows it waits a day at a time."""
    waiting.set(MINUTE)
    far = context(START, datetime(9999, 12, 31, tzinfo=START.tzinfo))
    task = operator(waiting.path, local_below=1000, wait_timeout=timedelta.max, unit=None)
    assert moment(waiting.deferred(lambda: task.execute(far))) == waiting.machine + DAY
    with pytest.raises(AirflowFailException, match="FutureTimeError"):
        operator(waiting.path).execute(far)


@pytest.mark.parametrize("left", [MILLISECOND, MINUTE], ids=str)
def test_a_database_whose_clock_stands_still_is_not_waited_for_ever(
    waiting: Waiting, left: timedelta
) -> None:
    """The task gives up after three minutes, and may be retried; a clock that is slow is followed."""
    waiting.set(left)
    waiting.speed = 0
    with pytest.raises(NotYetError, match=r"by the database's clock, .*, after 0:0[23]:.. of waiting"):
        waiting.export()
    assert MINUTE < waiting.slept_in_all <= 3 * MINUTE
    assert len(waiting.slept) < 2000
    waiting.check_untouched()
    waiting.set(left / 2)
    waiting.speed = 0.6
    waiting.export()
    waiting.check_complete()


def test_a_clock_that_is_set_back_during_a_sleep_leads_to_a_deferral(waiting: Waiting) -> None:
    """No task sleeps for an hour."""
    waiting.set(2 * SECOND)

    def set_back() -> None:
        waiting.database -= 20 * MINUTE
        waiting.wake = int

    waiting.wake = set_back
    waiting.deferred()


@pytest.mark.parametrize("left", [3 * SECOND, MINUTE], ids=str)
def test_a_killed_task_wakes_up(waiting: Waiting, left: timedelta) -> None:
    """Within a second, as Airflow kills what has not ended some seconds later; it fails, for a retry."""
    waiting.set(left)
    task = operator(waiting.path, local_below=1000)

    def kill() -> None:
        if len(waiting.slept) == 3:
            task.on_kill()

    waiting.wake = kill
    with pytest.raises(StoppedError, match="stopped on request while it waited for the end of window"):
        task.execute(context(START, END))
    assert waiting.slept_in_all <= 4 * SECOND
    waiting.check_untouched()


def test_a_batch_waits_for_nothing(waiting: Waiting) -> None:
    """Its run's interval does not count."""
    waiting.set(HOUR)
    task = operator(waiting.path, unit=None, mode="batch", local_below=1000)
    assert task.execute(context(START + 7 * HOUR, START + 8 * HOUR))["windows"] == []
    assert waiting.slept == []


def test_mapped_tasks_wait(waiting: Waiting) -> None:
    """Each for its own window."""
    waiting.set(50 * MINUTE)
    with DAG("mapped_waits", schedule=None):
        mapped = ChangefeedToParquetOperator.partial(
            task_id="export", path=waiting.path, consumer=CONSUMER, local_below=1000, wait_timeout=10
        ).expand(feed=[FEED])
    with pytest.raises(AirflowFailException, match="0:00:10 at most"):
        mapped.unmap({"feed": FEED, "wait_timeout": 10}).execute(context(START, END))
    task = mapped.unmap({"feed": FEED, "wait_timeout": HOUR})
    waiting.deferred(lambda: task.execute(context(START, END)))


def test_a_consumer_waits_too(waiting: Waiting) -> None:
    """Where it consumes to the end of a window, which it seals; to the head it waits for nothing."""
    create_consumer(SqliteFeedSource(waiting.file), ConsumerSpec(CONSUMER, FEED), "earliest", by="tests")
    seen: list[Any] = []

    def consume(**more: Any) -> ChangefeedConsumeOperator:
        return ChangefeedConsumeOperator(
            task_id="consume",
            feed=FEED,
            consumer=CONSUMER,
            handler=lambda event, connection: seen.append(event.id),
            **{"until": "window_end", **more},
        )

    waiting.set(50 * MINUTE)
    with pytest.raises(AirflowFailException, match=r"FutureTimeError.*0:01:00 at most"):
        consume(wait_timeout=60).execute(context(START, END))
    value = waiting.deferred(lambda: consume().execute(context(START, END)))
    assert (moment(value), value.kwargs) == (END, FIRST_WAIT)
    assert SqliteFeedSource(waiting.file).feed(FEED).sealed_until is None
    waiting.sleep(2980)
    task = consume()
    done = task.resume_execution("execute_complete", {**FIRST_WAIT, "event": END}, context(START, END))
    assert (done["events"], len(seen)) == (36, 36)
    assert 20 * SECOND <= waiting.slept_in_all - 2980 * SECOND <= 21 * SECOND
    assert consume(until="head").execute(context(START, END + HOUR))["events"] == 0
