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

from airflow_changefeed.core.values import floor_to_millisecond, to_milliseconds
from airflow_changefeed.exceptions import InvalidArgumentError, NotYetError, StoppedError
from airflow_changefeed.operators.consume import ChangefeedConsumeOperator
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.tasks import context as tasks_context
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
from airflow_changefeed.version_compat import AirflowFailException, TaskDeferred
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import context
from tests.unit.airflow.feeds import play
from tests.unit.airflow.test_operator import assert_complete, operator

pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
#: Of the window that the tests export: all events lie before.
END = START + 6 * HOUR
#: Of the waiting for an hour, up to a start of the task.
FIRST_WAIT = {"waits_since": "2013-01-01T05:10:00Z"}


class Clocks:
    """
    The database's clock and this machine's, which only move when somebody sleeps.

    :param database: what the database's says.
    :param ahead: how much this machine's is ahead of it.
    :ivar speed: of the database's clock.
    :ivar slept: all sleeps.
    :ivar wake: called after each sleep.
    """

    def __init__(self, database: datetime, ahead: timedelta = timedelta(0)) -> None:
        self.database, self.machine = database, database + ahead
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


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the export goes."""
    return str(tmp_path / "out")


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Clocks]:
    """Give a function that sets the clocks, the database's to a time before the window's end."""

    def set_clocks(before_end: timedelta, ahead: timedelta = timedelta(0)) -> Clocks:
        set_to = Clocks(END - before_end, ahead)
        monkeypatch.setattr(tasks_context, "time", set_to)
        monkeypatch.setattr(
            SqliteDatabase, "now_ms", lambda _: to_milliseconds(floor_to_millisecond(set_to.database))
        )
        return set_to

    return set_clocks


def export(path: str, **more: Any) -> Any:
    """Run the operator's task."""
    return operator(path, local_below=1000, **more).execute(context(START, END))


def deferred(path: str, **more: Any) -> TaskDeferred:
    """Run a task that is expected to defer, and return how it does."""
    with pytest.raises(TaskDeferred) as caught:
        export(path, **more)
    return caught.value


def resume(path: str, kwargs: Any = FIRST_WAIT, **more: Any) -> Any:
    """Let a task go on in another process, as Airflow does when the trigger has fired."""
    given = {**kwargs, "event": END}
    task = operator(path, local_below=1000, **more)
    return task.resume_execution("execute_complete", given, context(START, END))


def moment(value: TaskDeferred) -> datetime:
    """Return when the trigger fires, by Airflow's clock."""
    assert isinstance(value.trigger, DateTimeTrigger)
    return value.trigger.moment


def assert_untouched(database: str, path: str) -> None:
    """Check that a task has neither written nor held anything."""
    assert not Path(path).exists()
    source = SqliteFeedSource(database)
    assert source.cursors(FEED) == []
    assert source.leases() == []
    assert {status.sealed_until for status in source.shards(FEED)} == {None}


@pytest.mark.parametrize("ahead", [timedelta(0), timedelta(days=1), timedelta(days=-1)], ids=str)
@pytest.mark.parametrize("left", [timedelta(milliseconds=1), 20 * SECOND, MINUTE], ids=str)
def test_a_window_that_ends_within_a_minute_is_waited_for_in_the_task(
    database: str, path: str, clocks: Callable[..., Clocks], left: timedelta, ahead: timedelta
) -> None:
    """By the database's clock, whatever this machine's says; then it is exported."""
    clock = clocks(left, ahead)
    export(path)
    assert_complete(database, path, 6)
    assert left <= clock.slept_in_all <= left + SECOND


def test_a_window_that_has_ended_is_not_waited_for(
    database: str, path: str, clocks: Callable[..., Clocks]
) -> None:
    """Also where it ends at this very moment, and where this machine's clock is behind."""
    clock = clocks(timedelta(0), -HOUR)
    export(path)
    assert_complete(database, path, 6)
    assert clock.slept == []


@pytest.mark.parametrize(
    "ahead", [timedelta(0), timedelta(days=1), timedelta(days=-1), timedelta(microseconds=7250)], ids=str
)
def test_a_later_end_is_waited_for_without_a_worker(
    database: str,
    path: str,
    clocks: Callable[..., Clocks],
    monkeypatch: pytest.MonkeyPatch,
    ahead: timedelta,
) -> None:
    """The triggerer waits as long as the database's clock says, by Airflow's; nothing is held or open."""
    source = play(monkeypatch)
    clock = clocks(50 * MINUTE, ahead)
    value = deferred(path)
    assert moment(value) == floor_to_millisecond(END + ahead)
    assert (value.method_name, value.timeout) == ("execute_complete", None)
    assert clock.slept == []
    assert source.closed.is_set()
    assert_untouched(database, path)
    assert json.loads(json.dumps(value.kwargs)) == value.kwargs


def test_a_minute_and_a_bit_is_deferred(database: str, path: str, clocks: Callable[..., Clocks]) -> None:
    """A minute is not."""
    clocks(MINUTE + SECOND)
    assert moment(deferred(path)) == END


def test_a_resumed_task_begins_anew(database: str, path: str, clocks: Callable[..., Clocks]) -> None:
    """It exports the window; what is wrong by now is refused."""
    clock = clocks(50 * MINUTE)
    value = deferred(path)
    clock.sleep(3000)
    with pytest.raises(AirflowFailException, match=r"ConnectionNotUsableError.*'nowhere'"):
        resume(path, value.kwargs, changefeed_conn_id="nowhere")
    resume(path, value.kwargs)
    assert_complete(database, path, 6)


def test_a_task_that_is_woken_too_early_defers_again(
    database: str, path: str, clocks: Callable[..., Clocks]
) -> None:
    """As by a triggerer whose clock is ahead, which would do it again at once: so a minute passes first."""
    clock = clocks(50 * MINUTE)
    value = deferred(path)
    assert value.kwargs == FIRST_WAIT
    clock.sleep(600)
    with pytest.raises(TaskDeferred) as caught:
        resume(path, value.kwargs)
    assert moment(caught.value) == END
    assert caught.value.kwargs == FIRST_WAIT
    assert clock.slept_in_all == 11 * MINUTE


def test_a_task_that_is_woken_a_little_too_early_needs_no_other_deferral(
    database: str, path: str, clocks: Callable[..., Clocks]
) -> None:
    """It sleeps until the end, here twice."""
    clock = clocks(50 * MINUTE)
    value = deferred(path)
    clock.sleep(48.5 * 60)
    resume(path, value.kwargs)
    assert_complete(database, path, 6)
    assert clock.slept_in_all == 50 * MINUTE


def test_the_limit_counts_from_the_tasks_first_start(
    database: str, path: str, clocks: Callable[..., Clocks]
) -> None:
    """A database's clock that is set back again and again does not make a task wait for ever."""
    clock = clocks(50 * MINUTE)
    value = deferred(path)
    clock.sleep(3000)
    clock.database -= 11 * MINUTE
    with pytest.raises(
        AirflowFailException, match=r"ends in 0:11:00 .*1:00:00 at most, and has waited 0:50:00"
    ):
        resume(path, value.kwargs)
    clock.database += 2 * MINUTE
    with pytest.raises(TaskDeferred):
        resume(path, value.kwargs)
    clock.sleep(3600)
    resume(path, value.kwargs)
    assert_complete(database, path, 6)


def test_a_minute_is_slept_also_when_the_limit_is_reached(
    database: str, path: str, clocks: Callable[..., Clocks]
) -> None:
    """A database's clock that loses some seconds in an hour fails nothing."""
    clock = clocks(HOUR)
    value = deferred(path)
    clock.speed = 0.99
    clock.sleep(3600)
    resume(path, value.kwargs)
    assert_complete(database, path, 6)


def test_dag_test_does_not_tell_how_long_was_waited(
    database: str, path: str, clocks: Callable[..., Clocks]
) -> None:
    """It hands on nothing but the trigger's event, to the same object; a later try knows of no wait."""
    clock = clocks(50 * MINUTE)
    task = operator(path, local_below=1000)
    for _ in range(2):
        with pytest.raises(TaskDeferred) as caught:
            task.resume_execution("execute_complete", {"event": END}, context(START, END))
        assert caught.value.kwargs == FIRST_WAIT
    with pytest.raises(TaskDeferred):
        task.resume_execution(
            "execute_complete", {"waits_since": "2013-01-01T05:05:00Z"}, context(START, END)
        )
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context(START, END, attempt=2))
    assert caught.value.kwargs == {"waits_since": "2013-01-01T05:11:00Z"}
    clock.sleep(3000)
    task.resume_execution("execute_complete", {"event": END}, context(START, END))
    assert_complete(database, path, 6)


@pytest.mark.parametrize(
    ("wait_timeout", "longest"),
    [(None, HOUR), (2 * HOUR, 2 * HOUR), (120, 2 * MINUTE), (90.5, 90.5 * SECOND), (0, MINUTE), (5, MINUTE)],
    ids=str,
)
def test_a_window_that_ends_later_than_wait_timeout_is_refused_at_once(
    database: str, path: str, clocks: Callable[..., Clocks], wait_timeout: Any, longest: timedelta
) -> None:
    """With what the database's clock says; a minute is always waited."""
    given = {} if wait_timeout is None else {"wait_timeout": wait_timeout}
    clock = clocks(longest + timedelta(milliseconds=1), -3 * MINUTE)
    now = f"{clock.database:%Y-%m-%dT%H:%M:%S}"
    with pytest.raises(
        AirflowFailException, match=rf"FutureTimeError: .*the database's clock, {now}.*at most"
    ):
        export(path, **given)
    assert clock.slept == []
    assert_untouched(database, path)
    clocks(longest)
    if longest > MINUTE:
        assert moment(deferred(path, **given)) == END
    else:
        export(path, **given)


def test_a_window_of_another_century_is_refused_whatever_is_allowed(
    database: str, path: str, clocks: Callable[..., Clocks]
) -> None:
    """And a person who allows it waits a day at a time."""
    clock = clocks(MINUTE)
    task = operator(path, local_below=1000, wait_timeout=timedelta.max, unit=None)
    far = datetime(9999, 12, 31, tzinfo=START.tzinfo)
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context(START, far))
    assert moment(caught.value) == clock.machine + timedelta(days=1)
    with pytest.raises(AirflowFailException, match="FutureTimeError"):
        operator(path).execute(context(START, far))


@pytest.mark.parametrize("left", [timedelta(milliseconds=1), SECOND, MINUTE], ids=str)
def test_a_database_whose_clock_stands_still_is_not_waited_for_ever(
    database: str, path: str, clocks: Callable[..., Clocks], left: timedelta
) -> None:
    """The task gives up after three minutes, and may be retried."""
    clock = clocks(left)
    clock.speed = 0
    with pytest.raises(NotYetError, match=r"by the database's clock, .*, after 0:0[23]:.. of waiting"):
        export(path)
    assert MINUTE < clock.slept_in_all <= 3 * MINUTE
    assert len(clock.slept) < 2000
    assert_untouched(database, path)


def test_a_slow_clock_is_followed(database: str, path: str, clocks: Callable[..., Clocks]) -> None:
    """It is looked at again until it says that the window has ended."""
    clock = clocks(30 * SECOND)
    clock.speed = 0.6
    export(path)
    assert_complete(database, path, 6)


def test_a_clock_that_is_set_back_during_a_sleep_leads_to_a_deferral(
    database: str, path: str, clocks: Callable[..., Clocks]
) -> None:
    """No task sleeps for an hour."""
    clock = clocks(2 * SECOND)

    def set_back() -> None:
        clock.database -= 20 * MINUTE
        clock.wake = int

    clock.wake = set_back
    deferred(path)


@pytest.mark.parametrize("left", [3 * SECOND, MINUTE], ids=str)
def test_a_killed_task_wakes_up(
    database: str, path: str, clocks: Callable[..., Clocks], left: timedelta
) -> None:
    """Within a second, as Airflow kills what has not ended some seconds later; it fails, for a retry."""
    clock = clocks(left)
    task = operator(path, local_below=1000)

    def kill() -> None:
        if len(clock.slept) == 3:
            task.on_kill()

    clock.wake = kill
    with pytest.raises(StoppedError, match="stopped on request while it waited for the end of window"):
        task.execute(context(START, END))
    assert clock.slept_in_all <= 4 * SECOND
    assert_untouched(database, path)


def test_a_missing_feed_is_not_waited_for(database: str, path: str, clocks: Callable[..., Clocks]) -> None:
    """The wrong name is told now, not in an hour."""
    clocks(HOUR)
    with pytest.raises(AirflowFailException, match=r"FeedNotFoundError.*nyc\.Weather"):
        export(path, feed="nyc.Weather")


def test_a_batch_waits_for_nothing(database: str, path: str, clocks: Callable[..., Clocks]) -> None:
    """Its run's interval does not count."""
    clock = clocks(HOUR)
    task = operator(path, unit=None, mode="batch", local_below=1000)
    assert task.execute(context(START + 7 * HOUR, START + 8 * HOUR))["windows"] == []
    assert clock.slept == []


def test_mapped_tasks_wait(database: str, path: str, clocks: Callable[..., Clocks]) -> None:
    """Each for its own window."""
    clocks(50 * MINUTE)
    with DAG("mapped_waits", schedule=None):
        mapped = ChangefeedToParquetOperator.partial(
            task_id="export", path=path, consumer=CONSUMER, local_below=1000, wait_timeout=10
        ).expand(feed=[FEED])
    with pytest.raises(AirflowFailException, match="0:00:10 at most"):
        mapped.unmap({"feed": FEED, "wait_timeout": 10}).execute(context(START, END))
    with pytest.raises(TaskDeferred):
        mapped.unmap({"feed": FEED, "wait_timeout": HOUR}).execute(context(START, END))


def test_a_consumer_waits_too(database: str, path: str, clocks: Callable[..., Clocks]) -> None:
    """Where it consumes to the end of a window, which it seals; to the head it waits for nothing."""
    from airflow_changefeed.consumers.settings import create_consumer
    from airflow_changefeed.core.consumer import ConsumerSpec

    create_consumer(SqliteFeedSource(database), ConsumerSpec(CONSUMER, FEED), "earliest", by="tests")
    seen: list[Any] = []

    def consume(**more: Any) -> ChangefeedConsumeOperator:
        return ChangefeedConsumeOperator(
            task_id="consume",
            feed=FEED,
            consumer=CONSUMER,
            handler=lambda event, connection: seen.append(event.id),
            **{"until": "window_end", **more},
        )

    clock = clocks(50 * MINUTE)
    with pytest.raises(AirflowFailException, match=r"FutureTimeError.*0:01:00 at most"):
        consume(wait_timeout=60).execute(context(START, END))
    with pytest.raises(TaskDeferred) as caught:
        consume().execute(context(START, END))
    assert (moment(caught.value), caught.value.kwargs) == (END, FIRST_WAIT)
    assert SqliteFeedSource(database).feed(FEED).sealed_until is None
    clock.sleep(2980)
    task = consume()
    done = task.resume_execution("execute_complete", {**FIRST_WAIT, "event": END}, context(START, END))
    assert (done["events"], len(seen)) == (36, 36)
    assert 20 * SECOND <= clock.slept_in_all - 2980 * SECOND <= 21 * SECOND
    assert consume(until="head").execute(context(START, END + HOUR))["events"] == 0


@pytest.mark.parametrize(
    "wait_timeout",
    [-1, -SECOND, None, "an hour", True, float("nan"), float("inf"), 1e300, "{{ params.wait }}"],
    ids=repr,
)
def test_a_wrong_wait_timeout_is_refused(wait_timeout: Any) -> None:
    """When the DAG is parsed, by both operators, with what it may be."""
    message = r"wait_timeout must be a length of time, 0 or more .*a timedelta, seconds, or a text"
    with pytest.raises(InvalidArgumentError, match=message):
        operator("/out", wait_timeout=wait_timeout)
    with pytest.raises(InvalidArgumentError, match=message):
        ChangefeedConsumeOperator(
            task_id="consume", feed=FEED, consumer=CONSUMER, handler=print, wait_timeout=wait_timeout
        )


def test_a_wait_timeout_is_a_length_or_seconds() -> None:
    """Zero too."""
    assert [tasks_context.WAIT_LENGTH(one) for one in (HOUR, 90, 0.5, 0, "1h")] == [
        HOUR,
        90 * SECOND,
        SECOND / 2,
        0 * HOUR,
        HOUR,
    ]
