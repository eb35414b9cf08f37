# SPDX-License-Identifier: Apache-2.0
"""The trigger: it polls as the sensor does, without ever holding up the loop that it shares."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from airflow_changefeed.exceptions import (
    ConnectionNotUsableError,
    FeedNotFoundError,
    InvalidArgumentError,
    SourceUnavailableError,
    TransientError,
    error_text,
)
from airflow_changefeed.triggers.changefeed import MOST_FAILURES, ChangefeedTrigger, read_event
from tests.unit.airflow.conftest import CONSUMER, FEED, START, insert
from tests.unit.airflow.feeds import play, raiser
from tests.unit.airflow.test_sensor import consume_all, poke, sensor

LOST = SourceUnavailableError("the connection broke")

#: Triggers that hang together.
WAITING = 24


def trigger(**more: Any) -> ChangefeedTrigger:
    """Return the trigger, as the triggerer makes it: from what it serialized to, by way of JSON."""
    ours = {"feed": FEED, "consumer": CONSUMER, "changefeed_conn_id": "changefeed_default"}
    arguments = {**ours, "poke_interval": 0, **more}
    path, values = ChangefeedTrigger(**arguments).serialize()
    assert path == "airflow_changefeed.triggers.changefeed.ChangefeedTrigger"
    return ChangefeedTrigger(**json.loads(json.dumps(values)))


async def event_of(waiting: ChangefeedTrigger) -> Any:
    """Return the payload of the only event."""
    (event,) = [event.payload async for event in waiting.run()]
    return json.loads(json.dumps(event))


def fire(**more: Any) -> Any:
    """Run a trigger to its end, and return the payload."""
    return asyncio.run(event_of(trigger(**more)))


def test_the_loop_imports_next_to_nothing() -> None:
    """The triggerer imports the trigger in the loop that all triggers share; the rest is a thread's."""
    code = (
        "import sys, airflow.triggers.base, airflow_changefeed; before = set(sys.modules); "
        "import airflow_changefeed.triggers.changefeed; print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1].split() == [
        "airflow_changefeed.exceptions",
        "airflow_changefeed.triggers",
        "airflow_changefeed.triggers.changefeed",
    ]


def test_news_that_is_there_fires_at_once_with_what_a_poke_gives(database: str) -> None:
    """The same shards, cursors and heads."""
    assert read_event(fire()) == (poke(sensor())[1], False)
    assert read_event(fire(shards=["1"])) == (poke(sensor(shards=[1]))[1], False)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"feed": "nyc.Weather"}, "FeedNotFoundError", "nyc.Weather"),
        ({"shards": ["7"], "window_end": "2013-01-01T01:00:00Z"}, "ShardNotFoundError", "shard 7"),
        ({"window_end": "tomorrow"}, "InvalidWindowError", "tomorrow"),
    ],
)
def test_what_can_never_succeed_ends_at_the_first_poll(
    database: str, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], error: str, message: str
) -> None:
    """A terminal error becomes the event, with its class and its words."""
    consume_all(database)
    scripted = play(monkeypatch)
    event = fire(**arguments)
    assert event["status"] == "failed"
    assert event["error"].startswith(f"airflow_changefeed.exceptions.{error}: ")
    assert message in event["error"]
    assert scripted.opened == 1


def test_a_lost_connection_is_looked_over(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failure less than the limit, twice: each time with a connection that is asked for again."""
    failures = [raiser(LOST)] * (MOST_FAILURES - 1)
    consume_all(database)
    new_events = partial(insert, database, range(100, 101), START)
    scripted = play(monkeypatch, *failures, int, *failures, new_events)
    assert list(read_event(fire())[0]) == ["0"]
    # The first one may be open already, by a trigger of before.
    assert scripted.opened >= 2 * len(failures)


@pytest.mark.parametrize(
    ("error", "expected"),
    [(LOST, SourceUnavailableError), (ZeroDivisionError("a bug"), TransientError)],
)
def test_a_database_that_stays_away_fails_the_task_for_a_retry(
    database: str, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: type[Exception]
) -> None:
    """Beyond the limit the error becomes the event, and is transient when the task reads it."""
    scripted = play(monkeypatch, *[raiser(error)] * MOST_FAILURES)
    event = fire()
    assert scripted.opened == MOST_FAILURES
    with pytest.raises(expected, match=str(error)) as caught:
        read_event(event)
    assert isinstance(caught.value, TransientError)


def test_a_connection_that_is_missing_for_a_moment_is_asked_for_again(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The task had it; in the triggerer, an API that does not answer looks like a missing connection. In the end
    it is terminal, as for a poke.
    """

    class Patient(ChangefeedTrigger):
        def pause(self, polls: int) -> float:
            if polls == MOST_FAILURES - 2:
                connection = {"conn_type": "sqlite", "host": database}
                monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", json.dumps(connection))
            return 0

    arguments = trigger(changefeed_conn_id="elsewhere").serialize()[1]
    assert asyncio.run(event_of(Patient(**arguments)))["status"] == "ready"
    with pytest.raises(ConnectionNotUsableError, match="'nowhere'"):
        read_event(fire(changefeed_conn_id="nowhere"))


def locked(database: str) -> sqlite3.Connection:
    """Lock a feed's file, for readers too, until the connection is closed."""
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("pragma journal_mode = delete")
    connection.execute("begin exclusive")
    return connection


def test_a_lock_is_waited_for_no_longer_than_the_lock_timeout(database: str) -> None:
    """The trigger's own lock timeout counts, not the connection's."""
    with closing(locked(database)):
        assert "LockTimeoutError: " in fire(lock_timeout=0, most_failures=2)["error"]


def test_looks_that_hang_hold_up_nobody_else(database: str) -> None:
    """Neither the loop nor asyncio's threads, and a trigger is cancelled without waiting for its poll."""

    async def hang() -> list[Any]:
        with closing(locked(database)):
            more = {"lock_timeout": 250.0}
            waits = [asyncio.create_task(event_of(trigger(**more))) for _ in range(WAITING)]
            for _ in range(3):
                await asyncio.sleep(0)
            await asyncio.to_thread(int)
            for cancelled in (waits.pop(0), waits.pop()):
                cancelled.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await cancelled
            assert not any(wait.done() for wait in waits)
        return await asyncio.gather(*waits)

    events = asyncio.run(hang())
    assert len(events) == WAITING - 2
    assert {event["status"] for event in events} == {"ready"}


def test_pauses_are_even_or_double_up_to_their_limit() -> None:
    """As a sensor's ``exponential_backoff`` and ``max_wait`` say; never too long for a float."""
    assert [trigger(poke_interval=30).pause(polls) for polls in (0, 1, 9)] == [30, 30, 30]
    doubling = trigger(poke_interval=30, exponential_backoff=True)
    assert [doubling.pause(polls) for polls in (0, 1, 2)] == [30, 60, 120]
    assert doubling.pause(10_000) > timedelta(days=365).total_seconds()
    limited = trigger(poke_interval=30, exponential_backoff=True, max_wait=100)
    assert [limited.pause(polls) for polls in (0, 1, 2, 10_000)] == [30, 60, 100, 100]
    assert trigger(poke_interval=0, exponential_backoff=True).pause(3) == 8


def test_an_event_of_something_else_is_refused() -> None:
    """The event is shown, with the likely cause: two versions of the package."""
    for event in (
        None,
        True,
        "ready",
        {},
        {"status": "ready"},
        {"status": "ready", "new_events": {}, "has_ended": False},
        {"status": "ready", "new_events": ["0"], "has_ended": False},
        {"status": "failed"},
        {"status": "gone", "new_events": {}, "has_ended": True},
    ):
        with pytest.raises(InvalidArgumentError, match="same version") as caught:
            read_event(event)
        assert repr(event) in str(caught.value)


def test_an_error_is_read_as_the_class_it_was() -> None:
    """What is no error of this package, whatever its name, is transient."""
    with pytest.raises(FeedNotFoundError, match=r"^gone$"):
        read_event({"status": "failed", "error": error_text(FeedNotFoundError("gone"))})
    with pytest.raises(TransientError, match=r"^OSError: gone$"):
        read_event({"status": "failed", "error": error_text(OSError("gone"))})
    for name in ("OSError", "Any", "__name__"):
        with pytest.raises(TransientError, match=f"{name}: gone$"):
            read_event({"status": "failed", "error": f"airflow_changefeed.exceptions.{name}: gone"})
