# SPDX-License-Identifier: Apache-2.0
"""The sensor: new events beyond the cursor, or a window that is over."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sensors.changefeed import ChangefeedSensor
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.version_compat import AirflowFailException, AirflowSkipException
from tests.unit.airflow.conftest import CONSUMER, FEED, START, insert
from tests.unit.airflow.fakes import context

HOUR = timedelta(hours=1)
FAR = datetime(2099, 1, 1, tzinfo=timezone.utc)


def sensor(**more: Any) -> ChangefeedSensor:
    """Return the sensor."""
    return ChangefeedSensor(**{"task_id": "wait", "feed": FEED, "consumer": CONSUMER, **more})


def consume_all(database: str) -> None:
    """Let the consumer stand at the end of what there is."""
    source = SqliteFeedSource(database)
    source.drain(FEED)
    heads = {status.shard: status.head or Ulid.MIN for status in source.shards(FEED)}
    source.begin_consumer(CONSUMER, FEED, heads, by="test")


def poke(task: ChangefeedSensor, *interval: Any, **more: Any) -> tuple[bool, Any]:
    """Poke once."""
    answer = task.poke(context(*interval, **more))
    return answer.is_done, answer.xcom_value


def test_events_in_the_outbox_are_news(database: str) -> None:
    """A new consumer stands at the start; nothing is written by looking."""
    begin = str(Ulid.MIN)
    assert poke(sensor()) == (
        True,
        {str(shard): {"after": begin, "head": None, "outbox": True} for shard in (0, 1)},
    )
    assert SqliteFeedSource(database).cursors(FEED) == []


def test_only_what_lies_beyond_the_cursor_is_news(database: str) -> None:
    """A consumer that has seen all waits; an event in one shard is new for that shard."""
    consume_all(database)
    assert poke(sensor()) == (False, {})
    insert(database, range(100, 101), START)
    is_done, new_events = poke(sensor())
    assert (is_done, list(new_events)) == (True, ["0"])
    assert poke(sensor(shards=[1])) == (False, {})
    assert poke(sensor(shards=["0"]))[0]


def test_a_window_that_has_ended_is_ready_without_news(database: str) -> None:
    """An idle hour is exported as empty instead of hanging; one that has not ended is waited for."""
    consume_all(database)
    assert poke(sensor(), START + 9 * HOUR, START + 10 * HOUR) == (True, {})
    assert poke(sensor(), START + 9 * HOUR, FAR) == (False, {})


def test_the_window_of_params_and_of_the_task_count(database: str) -> None:
    """The task's own window, then the params', then the data interval's."""
    consume_all(database)
    params = {"window_start": "2013-01-01T00:00:00Z", "window_end": FAR.isoformat()}
    assert not poke(sensor(), START, START + HOUR, params=params)[0]
    own = {"window_start": "2013-01-01T00:00:00Z", "window_end": "2013-01-01T01:00:00Z"}
    assert poke(sensor(**own), START, FAR, params=params)[0]


def test_a_quiet_window_can_be_skipped(database: str) -> None:
    """Who asks for it gets a skip instead of an empty export."""
    consume_all(database)
    with pytest.raises(AirflowSkipException, match="without new events"):
        poke(sensor(skip_without_new_events=True), START, START + HOUR)


def test_the_log_says_what_a_look_has_found(
    database: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """New events by shard, or none: yet, or at all."""
    poke(sensor())
    consume_all(database)
    poke(sensor(), START, FAR)
    poke(sensor(), START, START + HOUR)
    log = capsys.readouterr().out or caplog.text  # Airflow 3.0 logs by Python's own logging
    assert re.findall(f"Feed {FEED} has (.*) for consumer {CONSUMER}(.*?) *(?:\\[|\n)", log) == [
        ("new events", " in shards 0, 1"),
        ("no new events", " yet"),
        ("no new events", ", and the window has ended"),
    ]


@pytest.mark.parametrize(
    ("arguments", "interval", "message"),
    [
        ({"feed": "nyc.Weather"}, (), "FeedNotFoundError.*nyc.Weather"),
        ({"shards": [7]}, (START, START + HOUR), "ShardNotFoundError.*7"),
        ({"changefeed_conn_id": "nowhere"}, (), "ConnectionNotUsableError.*'nowhere'"),
        ({}, (START, START), "InvalidWindowError.*CronDataIntervalTimetable"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_fails_at_once(
    database: str, arguments: dict[str, Any], interval: tuple[Any, ...], message: str
) -> None:
    """A sensor that can never succeed does not wait for its timeout."""
    with pytest.raises(AirflowFailException, match=message):
        poke(sensor(**arguments), *interval)
