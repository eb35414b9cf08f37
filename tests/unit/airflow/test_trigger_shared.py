# SPDX-License-Identifier: Apache-2.0
"""Triggers that share their polls, in Airflow's own runner of triggers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from contextlib import closing
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest

from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import ShardNotFoundError, SourceUnavailableError
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.triggers.changefeed import MOST_FAILURES, read_event
from tests.unit.airflow.conftest import CONSUMER, FEED, START, insert
from tests.unit.airflow.feeds import play, raiser
from tests.unit.airflow.test_sensor import FAR, consume_all, poke, sensor
from tests.unit.airflow.test_trigger import LOST, event_of, trigger
from tests.unit.airflow.virtual import Triggerer, VirtualLoop, run

#: Seconds between polls, of the loop's own time.
INTERVAL = 60.0
SENSORS = 200


def make_feeds(path: str, count: int) -> list[str]:
    """Make feeds without events."""
    names = [f"many.Feed{number}" for number in range(count)]
    with closing(sqlite3.connect(path)) as connection:
        for name in names:
            connection.execute(f'create table "{name}" (id integer primary key)')
    for name in names:
        SqliteFeedSource(path).set_up_feed(name)
    return names


def announce(path: str, feed: str) -> None:
    """Put a row into a feed's outbox."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'insert into "{feed}" default values')
        connection.execute(f'insert into "changefeed.outbox:{feed}" (id) select max(id) from "{feed}"')
        connection.commit()


def test_hundreds_of_waiting_sensors_ask_once_an_interval(database: str) -> None:
    """However they come: of many feeds and consumers, one after the other, until all have new events."""
    feeds = make_feeds(database, 8)
    loop, asked, connect = VirtualLoop(), [], sqlite3.connect

    def counted(*args: Any, **options: Any) -> sqlite3.Connection:
        if threading.current_thread().name.startswith("changefeed-poll"):
            asked.append(loop.time())
        return connect(*args, **options)

    async def wait() -> Triggerer:
        triggerer = Triggerer()
        for number in range(SENSORS):
            waiting = trigger(
                feed=feeds[number % 8], consumer=f"consumer {number % 25}", poke_interval=INTERVAL
            )
            triggerer.start(waiting)
            await asyncio.sleep(0.3)
        await asyncio.sleep(10 * INTERVAL)
        assert (len(triggerer.keys), triggerer.payloads) == (1, {})
        for feed in feeds:
            announce(database, feed)
        await triggerer.end()
        return triggerer

    with patch("sqlite3.connect", counted):
        triggerer = run(wait(), loop)
    assert len(triggerer.keys) == 0
    assert len(triggerer.payloads) == SENSORS
    assert all(list(read_event(payload)[0]) == ["0"] for payload in triggerer.payloads.values())
    assert len(asked) > 10
    gaps = [later - first for first, later in pairwise(asked)]
    assert min(gaps) > INTERVAL - 0.001


def test_each_gets_its_own_news(database: str) -> None:
    """Of its feed, consumer, shards and window; what a poke gives, and nothing of others."""
    (quiet,) = make_feeds(database, 1)
    consume_all(database)

    async def wait() -> dict[int, Any]:
        triggerer, more = Triggerer(), {"poke_interval": INTERVAL}
        ended = triggerer.start(trigger(window_end=format_time(START), **more))
        others = [triggerer.start(trigger(**more)), triggerer.start(trigger(shards=["0"], **more))]
        never = [
            triggerer.start(trigger(shards=["1"], **more)),
            triggerer.start(trigger(feed=quiet, window_end=format_time(FAR), **more)),
        ]
        await asyncio.wait([triggerer.tasks[ended]])
        assert list(triggerer.payloads) == [ended]
        await asyncio.to_thread(insert, database, range(100, 101), START)
        await asyncio.wait([triggerer.tasks[number] for number in others])
        for number in never:
            await triggerer.stop(number)
        assert (len(triggerer.keys), set(triggerer.payloads)) == (0, {ended, *others})
        return triggerer.payloads

    first, *others = run(wait()).values()
    assert read_event(first) == ({}, True)
    assert all(read_event(payload) == (poke(sensor())[1], False) for payload in others)


def test_a_dropped_feed_ends_its_own_watchers_alone(database: str) -> None:
    """With the reason that a trigger of its own gives; so does a shard that never was."""
    gone, kept = make_feeds(database, 2)

    async def wait() -> dict[int, Any]:
        triggerer, more = Triggerer(), {"poke_interval": INTERVAL}
        ending = [triggerer.start(trigger(feed=gone, consumer=name, **more)) for name in ("a", "b")]
        triggerer.start(trigger(feed=kept, **more))
        await asyncio.sleep(3 * INTERVAL)
        ending.append(
            triggerer.start(trigger(feed=kept, shards=["7"], window_end=format_time(START), **more))
        )
        SqliteFeedSource(database).drop_feed(gone)
        await asyncio.wait([triggerer.tasks[number] for number in ending])
        assert set(triggerer.payloads) == set(ending)
        announce(database, kept)
        await triggerer.end()
        return triggerer.payloads

    payloads = run(wait())
    alone = asyncio.run(event_of(trigger(feed=gone)))
    assert [payloads[0], payloads[1]] == [alone, alone]
    with pytest.raises(ShardNotFoundError):
        read_event(payloads[3])
    assert read_event(payloads[2])[0].keys() == {"0"}


def test_a_database_that_goes_away_is_looked_over_for_each(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One gives up at its limit, with a transient reason; another, whose limit is none, goes on."""
    consume_all(database)
    scripted = play(monkeypatch, *[raiser(LOST)] * (MOST_FAILURES + 5))

    async def wait() -> dict[int, Any]:
        triggerer, more = Triggerer(), {"poke_interval": INTERVAL}
        patient = triggerer.start(trigger(most_failures=None, **more))
        first = triggerer.start(trigger(**more))
        await asyncio.wait([triggerer.tasks[first]])
        assert list(triggerer.payloads) == [first]
        await asyncio.sleep(10 * INTERVAL)
        insert(database, range(100, 101), START)
        await asyncio.wait([triggerer.tasks[patient]])
        return triggerer.payloads

    failed, ready = run(wait()).values()
    with pytest.raises(SourceUnavailableError):
        read_event(failed)
    assert list(read_event(ready)[0]) == ["0"]
    # Asked for again after each failure, then kept.
    assert scripted.opened == MOST_FAILURES + 6


def test_one_who_comes_later_is_looked_for_within_an_interval(database: str) -> None:
    """And waits for no other's pauses, which may be long."""
    (quiet,) = make_feeds(database, 1)

    async def wait() -> float:
        triggerer, loop = Triggerer(), asyncio.get_running_loop()
        first = triggerer.start(trigger(feed=quiet, poke_interval=3600))
        await asyncio.sleep(3600 + 100)
        started, later = loop.time(), triggerer.start(trigger(poke_interval=3600))
        await asyncio.wait([triggerer.tasks[later]])
        ended = loop.time()
        await triggerer.stop(first)
        return ended - started

    assert run(wait()) <= 3600


def test_the_last_to_leave_closes_the_source(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is cancelled; who comes afterwards begins anew."""
    consume_all(database)
    scripted = play(monkeypatch)

    async def wait() -> None:
        triggerer, more = Triggerer(), {"poke_interval": INTERVAL}
        first, second = triggerer.start(trigger(**more)), triggerer.start(trigger(**more))
        await asyncio.sleep(3 * INTERVAL)
        await triggerer.stop(first)
        assert (len(triggerer.keys), scripted.closed.is_set()) == (1, False)
        await triggerer.stop(second)
        assert len(triggerer.keys) == 0
        assert await asyncio.to_thread(scripted.closed.wait, 60)
        third = triggerer.start(trigger(**more))
        await asyncio.sleep(3 * INTERVAL)
        await triggerer.stop(third)

    run(wait())
    assert scripted.opened == 2


def test_growing_pauses_let_shared_looks_pass(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``exponential_backoff`` and ``max_wait`` mean the same as for a trigger that is alone."""
    consume_all(database)
    loop, polled = VirtualLoop(), []
    play(monkeypatch, *[lambda: polled.append(loop.time())] * 100)

    async def wait() -> None:
        triggerer = Triggerer()
        number = triggerer.start(trigger(poke_interval=60, exponential_backoff=True, max_wait=200))
        await asyncio.sleep(800)
        await triggerer.stop(number)

    run(wait(), loop)
    assert [round((later - one) / 60) for one, later in pairwise(polled)] == [1, 2, 3, 3, 3]


def test_what_is_shared_is_told_apart_without_secrets(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    By the connection's name and by how one polls; feeds, consumers and windows may differ. What lies in
    Airflow's database names the connection as well, also when the source is open.
    """
    secret = {"conn_type": "sqlite", "host": database, "login": "reader", "password": "hunter2"}
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(secret))
    consume_all(database)
    more = {"poke_interval": INTERVAL}
    same = {"feed": "a", "consumer": "b", "shards": ["1"], "window_end": format_time(FAR)}
    others = ({"changefeed_conn_id": "other"}, {"lock_timeout": 5}, {"poke_interval": 7})
    first = trigger(**more)

    async def wait() -> str:
        triggerer = Triggerer()
        numbers = [triggerer.start(each) for each in (first, trigger(**same, **more))]
        await asyncio.sleep(0.1)
        assert len(triggerer.keys) == 1
        numbers += [triggerer.start(trigger(**{**more, **other})) for other in others]
        await asyncio.sleep(0.1)
        assert len(triggerer.keys) == 4
        shown = repr(triggerer.keys) + json.dumps(first.serialize()) + repr(first)
        for number in numbers:
            await triggerer.stop(number)
        return shown

    shown = run(wait())
    assert "changefeed_default" in shown
    assert "hunter2" not in shown
    assert database not in shown


def test_the_end_of_a_window_ends_each_in_its_turn(database: str) -> None:
    """By the database's clock, also of those that share."""
    consume_all(database)
    soon = format_time(datetime.now(timezone.utc).replace(microsecond=0) + timedelta(seconds=1))

    async def wait() -> dict[int, Any]:
        triggerer = Triggerer()
        triggerer.start(trigger(window_end=soon, consumer=CONSUMER, feed=FEED))
        late = triggerer.start(trigger(window_end=format_time(FAR)))
        await asyncio.wait([triggerer.tasks[0]])
        await triggerer.stop(late)
        return triggerer.payloads

    assert read_event(asyncio.run(wait())[0]) == ({}, True)
