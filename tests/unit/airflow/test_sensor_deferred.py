# SPDX-License-Identifier: Apache-2.0
"""The deferrable sensor: a first poll in the task, the rest in the triggerer, the same result."""

from __future__ import annotations

import asyncio
import inspect
import json
from contextlib import closing
from datetime import datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import FeedNotFoundError, LockTimeoutError, error_text
from airflow_changefeed.sensors.changefeed import ChangefeedSensor
from airflow_changefeed.triggers.changefeed import MOST_FAILURES
from airflow_changefeed.version_compat import (
    AIRFLOW_V_3_2_PLUS,
    AirflowFailException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralError,
    TaskDeferred,
)
from tests.examples import examples, run_example
from tests.unit.airflow.conftest import CONSUMER, FEED, START, insert
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_sensor import FAR, consume_all, poke, sensor
from tests.unit.airflow.test_trigger import event_of, locked, trigger

PROJECT = Path(__file__).resolve().parents[3]
HOUR = timedelta(hours=1)
TIMED_OUT = {"error": TriggerFailureReason.TRIGGER_TIMEOUT}


def deferrable(**more: Any) -> ChangefeedSensor:
    """Return the sensor, deferrable."""
    return sensor(**{"deferrable": True, **more})


def deferred(task: ChangefeedSensor, *interval: Any, **more: Any) -> TaskDeferred:
    """Run a task that is expected to defer, and return how it does."""
    with pytest.raises(TaskDeferred) as caught:
        task.execute(context(*interval, **more))
    return caught.value


def resume(task: ChangefeedSensor, event: Any) -> Any:
    """Let a task go on with what the trigger fired, in a process that knows nothing of the first."""
    return task.resume_execution("execute_complete", {"event": event}, context())


def test_news_that_is_there_needs_no_trigger(database: str) -> None:
    """The task polls before it defers."""
    assert deferrable().execute(context()) == poke(sensor())[1]


def test_without_news_it_defers_to_a_trigger_with_the_rendered_arguments(database: str) -> None:
    """Shards as text, the window's end as the task sees it, and all that every sensor has."""
    consume_all(database)
    task = deferrable(
        shards=[0, "1"], lock_timeout=5, poke_interval=7, timeout=99, exponential_backoff=True, max_wait=50
    )
    value = deferred(task, START, FAR)
    assert (value.method_name, value.timeout) == ("execute_complete", timedelta(seconds=99))
    assert value.trigger.serialize()[1] == {
        "feed": FEED,
        "consumer": CONSUMER,
        "shards": ["0", "1"],
        "changefeed_conn_id": "changefeed_default",
        "window_end": format_time(FAR),
        "lock_timeout": 5,
        "poke_interval": 7,
        "exponential_backoff": True,
        "max_wait": 50,
        "most_failures": MOST_FAILURES,
    }


def test_a_run_without_a_window_defers_for_news_alone(database: str) -> None:
    """
    As one triggered by an asset; and without limits where none are given. A sensor defers
    only if asked to.
    """
    assert inspect.signature(ChangefeedSensor.__init__).parameters["deferrable"].default is False
    consume_all(database)
    assert poke(sensor(mode="reschedule")) == (False, {})
    arguments = deferred(deferrable()).trigger.serialize()[1]
    assert {name for name, value in arguments.items() if value is None} == {
        "shards",
        "window_end",
        "lock_timeout",
        "max_wait",
    }


def test_news_that_comes_while_deferred_is_the_result_that_a_poke_gives(database: str) -> None:
    """The whole way: task, trigger, event, and the task again."""
    consume_all(database)
    value = deferred(deferrable(poke_interval=0), START, FAR)
    insert(database, range(100, 101), START)
    result = resume(deferrable(), asyncio.run(event_of(value.trigger)))
    assert result == poke(sensor())[1]
    assert (result["0"]["head"], result["0"]["after"] > str(Ulid.MIN)) == (None, True)


def test_a_quiet_window_can_be_skipped(database: str) -> None:
    """Before deferring, and after; otherwise it is the empty result."""
    consume_all(database)
    event = {"status": "ready", "new_events": {}, "has_ended": True}
    with pytest.raises(AirflowSkipException, match="without new events"):
        deferrable(skip_without_new_events=True).execute(context(START, START + HOUR))
    with pytest.raises(AirflowSkipException, match="without new events"):
        resume(deferrable(skip_without_new_events=True), event)
    assert resume(deferrable(), event) == {}


def test_bad_input_fails_before_deferring(database: str) -> None:
    """With the class and the words of the error; ``soft_fail`` makes a skip of it."""
    with pytest.raises(AirflowFailException, match=r"FeedNotFoundError.*nyc\.Weather"):
        deferrable(feed="nyc.Weather").execute(context())
    with pytest.raises(AirflowFailException, match=r"InvalidWindowError.*CronDataIntervalTimetable"):
        deferrable().execute(context(START, START))
    with pytest.raises(AirflowSkipException):
        deferrable(feed="nyc.Weather", soft_fail=True).execute(context())


FAILED = {"status": "failed", "error": error_text(FeedNotFoundError("no feed nyc.Flight"))}
LOCKED = {"status": "failed", "error": error_text(LockTimeoutError("somebody holds it"))}
BROKEN = {"error": TriggerFailureReason.TRIGGER_FAILURE, "traceback": ["ImportError"]}


@pytest.mark.parametrize(
    ("options", "event", "kind", "message"),
    [
        ({}, FAILED, AirflowFailException, r"^FeedNotFoundError: no feed nyc\.Flight$"),
        # Airflow 3.0 says the error itself.
        ({"soft_fail": True}, FAILED, AirflowSkipException, "soft_fail|^FeedNotFoundError"),
        ({"never_fail": True}, FAILED, AirflowSkipException, "never_fail|^FeedNotFoundError"),
        ({}, LOCKED, LockTimeoutError, "somebody holds it"),
        ({"soft_fail": True}, LOCKED, LockTimeoutError, "somebody holds it"),
        ({"never_fail": True}, LOCKED, AirflowSkipException, "never_fail"),
        (
            {},
            {"status": "success"},
            AirflowFailException,
            "InvalidArgumentError.*is not an event of ChangefeedTrigger",
        ),
    ],
)
def test_what_the_trigger_tells_fails_the_task_as_a_poke_does(
    database: str, options: dict[str, Any], event: Any, kind: type[Exception], message: str
) -> None:
    """
    A terminal error for good, with its class and words, as an event of another version; a transient one is
    left to the retries, also with ``soft_fail``; ``never_fail`` makes a skip of it.
    """
    with pytest.raises(kind, match=message):
        resume(deferrable(**options), event)


def test_a_trigger_that_broke_is_left_to_the_retries(database: str) -> None:
    """It could not be loaded, for example; that is not a timeout, so nothing is polled again."""
    with pytest.raises(TaskDeferralError):
        deferrable().resume_execution(TRIGGER_FAIL_REPR, BROKEN, context())


def test_a_silent_sensor_defers_over_a_failed_poll(database: str) -> None:
    """``silent_fail`` ignores errors in the triggerer, forever, instead of keeping a worker."""
    with closing(locked(database)):
        value = deferred(deferrable(silent_fail=True, lock_timeout=0))
        with pytest.raises(LockTimeoutError):
            deferrable(lock_timeout=0).execute(context())
    assert value.trigger.serialize()[1]["most_failures"] is None


def test_the_timeout_of_the_sensor_counts(database: str) -> None:
    """Airflow ends the waiting; the task fails without a retry, or is skipped, as in poke mode."""
    consume_all(database)
    with pytest.raises(AirflowSensorTimeout):
        deferrable().resume_execution(TRIGGER_FAIL_REPR, TIMED_OUT, context())
    for option in ("soft_fail", "never_fail"):
        with pytest.raises(AirflowSkipException, match=option):
            deferrable(**{option: True}).resume_execution(TRIGGER_FAIL_REPR, TIMED_OUT, context())


@pytest.mark.parametrize("options", [{}, {"soft_fail": True}], ids=str)
def test_what_is_there_at_the_timeout_is_not_lost(database: str, options: dict[str, Any]) -> None:
    """A last poll, as in poke mode: the triggerer may have been down until then."""
    task = deferrable(**options)
    assert task.resume_execution(TRIGGER_FAIL_REPR, TIMED_OUT, context()) == poke(sensor())[1]


def test_a_last_look_that_fails_leaves_the_timeout(database: str) -> None:
    """Whatever the reason; the timeout is what ended the waiting."""
    for more in ({"feed": "nyc.Weather"}, {"changefeed_conn_id": "nowhere"}):
        with pytest.raises(AirflowSensorTimeout):
            deferrable(**more).resume_execution(TRIGGER_FAIL_REPR, TIMED_OUT, context())
    with closing(locked(database)), pytest.raises(AirflowSensorTimeout):
        deferrable(lock_timeout=0).resume_execution(TRIGGER_FAIL_REPR, TIMED_OUT, context())


def test_mapped_sensors_defer_each_for_itself(database: str) -> None:
    """``expand`` gives each its own feed or shards, and each goes on alone."""
    consume_all(database)
    with DAG("mapped", schedule=None, start_date=datetime(2013, 1, 1)):
        mapped = ChangefeedSensor.partial(
            task_id="wait", feed=FEED, consumer=CONSUMER, deferrable=True, poke_interval=0
        ).expand(shards=[[0], [1]])
    insert(database, range(100, 101), START)
    first, second = (mapped.unmap({"shards": shards}) for shards in ([0], [1]))
    assert list(first.execute(context())) == ["0"]
    value = deferred(second)
    assert value.trigger.serialize()[1]["shards"] == ["1"]
    insert(database, range(101, 102), START)
    assert list(resume(second, asyncio.run(event_of(value.trigger)))) == ["1"]


def test_the_event_is_what_airflow_can_store(database: str) -> None:
    """Airflow's own serialization gives back what the trigger fired."""
    serde: Any = import_module("airflow.sdk.serde" if AIRFLOW_V_3_2_PLUS else "airflow.serialization.serde")
    event = asyncio.run(event_of(trigger()))
    stored: Any = json.loads(json.dumps(serde.serialize({"event": event})))
    assert serde.deserialize(stored) == {"event": event}


def test_the_documented_sensor_defers(database: str) -> None:
    """The example of the reference, as it stands there."""
    (block,) = [code for code in examples("reference/airflow.md", {}) if "deferrable" in code]
    names: dict[str, Any] = {}
    run_example(block, names)
    assert names["wait"].execute(context(START, FAR)) == poke(sensor())[1]
    consume_all(database)
    assert deferred(names["wait"], START, FAR).timeout == 2 * HOUR
