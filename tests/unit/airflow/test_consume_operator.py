# SPDX-License-Identifier: Apache-2.0
"""The operator that consumes, and the decorator: until when, what is refused, and what a function gets."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task

from airflow_changefeed.consumers.event import FeedEvent
from airflow_changefeed.consumers.holding import new_holder
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec, Consumption, DeadLetterState, OnPoison
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import LeaseHeldError, StoppedError
from airflow_changefeed.observability import metrics
from airflow_changefeed.operators.consume import ChangefeedConsumeOperator
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.tasks.context import run_name
from airflow_changefeed.version_compat import AirflowFailException
from tests.unit.airflow.fakes import context

FEED, NAME = "shop.Event", "billing"
HOUR = timedelta(hours=1)
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
WINDOW = {"data_interval_start": START, "data_interval_end": START + HOUR}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteFeedSource]:
    """A feed with three events in each of two hours and two shards, its consumer, and a table for work."""
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as connection, closing(SqliteFeedSource(str(path))) as source:
        connection.execute(f'create table "{FEED}" (id integer primary key)')
        connection.execute("create table work (id integer, note text)")
        source.set_up_feed(FEED)
        for number in range(12):
            hint = START + HOUR * (number // 6) + timedelta(minutes=number % 6)
            connection.execute(f'insert into "{FEED}" values (?)', (number,))
            connection.execute(
                f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (?, ?, ?)',
                (number % 2, int(hint.timestamp() * 1000), number),
            )
        connection.commit()
        spec = ConsumerSpec(NAME, FEED, max_attempts=1, on_poison=OnPoison.PARK)
        create_consumer(source, spec, "earliest", by="tests")
        monkeypatch.setenv(
            "AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": str(path)})
        )
        yield source


def note(event: FeedEvent, connection: sqlite3.Connection) -> None:
    """Write the event down."""
    connection.execute("insert into work values (?, ?)", ((event.row or {})["id"], "seen"))


def refuse_the_first(event: FeedEvent, connection: sqlite3.Connection) -> None:
    """Write down all events but one."""
    if (event.row or {})["id"] == 0:
        raise ValueError("not this one")
    note(event, connection)


def worked(source: SqliteFeedSource) -> list[int]:
    """Return the ids that were written down, in order of their writing."""
    with closing(sqlite3.connect(source.describe()["path"])) as connection:
        return [number for (number,) in connection.execute("select id from work order by rowid")]


def consume(**arguments: Any) -> ChangefeedConsumeOperator:
    """Make the operator."""
    given: dict[str, Any] = {"task_id": "consume", "feed": FEED, "consumer": NAME, "handler": note}
    return ChangefeedConsumeOperator(**given | arguments)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the names of the durations that are sent."""
    found: list[str] = []

    def timing(name: str, took: timedelta, *, tags: dict[str, str]) -> None:
        assert timedelta(0) < took < HOUR
        assert tags == {"feed": FEED, "consumer": NAME}
        found.append(name)

    monkeypatch.setattr(metrics, "Stats", SimpleNamespace(timing=timing))
    return found


def test_all_events_to_the_head_are_consumed(source: SqliteFeedSource, timed: list[str]) -> None:
    """
    Once; the next run finds none. How long the drain took is sent. The cursor says which run moved it, so
    that a watch finds its DAG, and which process: two of one run may not share a lease.
    """
    run = context(**WINDOW)
    result = consume().execute(run)
    assert (result["events"], result["parked"], set(result["cursors"])) == (12, 0, {"0", "1"})
    assert sorted(worked(source)) == list(range(12))
    assert timed == [metrics.DRAIN_DURATION]
    (mover,) = {row.moved_by for row in source.cursors(FEED, NAME)}
    by, _, process = mover.partition("@")
    assert by == run_name(run)
    assert f":{os.getpid()}:" in process
    assert consume().execute(context())["events"] == 0


def test_a_run_consumes_to_the_end_of_its_window(source: SqliteFeedSource, timed: list[str]) -> None:
    """
    Which is sealed, and how long that took is sent; the next hour is left alone, and so are other shards than
    those that were chosen. A run without a window is refused.
    """
    tokens = source.acquire_leases(NAME, FEED, [1], holder="another", seconds=600).tokens
    assert consume(until="window_end", shards=[0]).execute(context(**WINDOW))["events"] == 3
    assert timed == [metrics.SEAL_DURATION]
    source.release_leases(NAME, FEED, tokens, holder="another")
    result = consume(until="window_end").execute(context(**WINDOW))
    assert (result["events"], result["until"]) == (3, "2026-01-01T01:00:00Z")
    assert sorted(worked(source)) == list(range(6))
    assert source.feed(FEED).sealed_until == START + HOUR
    with pytest.raises(AirflowFailException, match="use until='head', or trigger the DAG"):
        consume(until="window_end").execute(context())


def test_a_long_name_of_a_run_fits_the_servers_column() -> None:
    """And leaves the part that makes the holder unique."""
    first, second = new_holder("d" * 300), new_holder("d" * 300)
    assert len(first) <= 256
    assert first != second


def test_a_batch_is_one_call(source: SqliteFeedSource) -> None:
    """Of events of one shard."""
    calls: list[int] = []
    consume(batch=4, handler=lambda events, connection: calls.append(len(events))).execute(context())
    assert sorted(calls) == [2, 2, 4, 4]


def test_a_dead_letter_in_the_window_fails_the_run_until_it_is_resolved(source: SqliteFeedSource) -> None:
    """The events after it are consumed; once it is dropped the cleared task succeeds."""
    operator = consume(until="window_end", handler=refuse_the_first)
    with pytest.raises(
        AirflowFailException, match=r"PoisonError: .*because of 1 dead letter\. .* retry 1 .* drop 1 "
    ):
        operator.execute(context(**WINDOW))
    assert sorted(worked(source)) == [1, 2, 3, 4, 5]
    source.resolve_dead_letter(1, DeadLetterState.DROPPED, by="tests")
    assert operator.execute(context(**WINDOW))["events"] == 0


def test_an_event_that_cannot_be_read_is_a_dead_letter_of_the_window(source: SqliteFeedSource) -> None:
    """The others are consumed; a task that is cleared delivers it once its row is there again."""
    with closing(sqlite3.connect(source.describe()["path"])) as connection:
        connection.execute(f'delete from "{FEED}" where id = 2')
        connection.commit()
        operator = consume(until="window_end")
        with pytest.raises(AirflowFailException, match="because of 1 dead letter"):
            operator.execute(context(**WINDOW))
        assert sorted(worked(source)) == [0, 1, 3, 4, 5]
        (letter,) = source.dead_letters(FEED)
        assert letter.reason.startswith("MissingEventError: event")
        connection.execute(f'insert into "{FEED}" values (2)')
        connection.commit()
    source.resolve_dead_letter(letter.number, DeadLetterState.RETRY, by="tests")
    assert operator.execute(context(**WINDOW))["events"] == 1
    assert worked(source)[-1] == 2


def test_a_window_that_others_have_not_finished_is_tried_again(source: SqliteFeedSource) -> None:
    """This task has what it holds itself; the error is transient, and names who holds the rest."""
    source.acquire_leases(NAME, FEED, [1], holder="another", seconds=600)
    with pytest.raises(LeaseHeldError, match=r"all events before 2026-01-01T01:00.*shard 1 by another until"):
        consume(until="window_end", register_timeout=0.5).execute(context(**WINDOW))
    assert sorted(worked(source)) == [0, 2, 4]


def test_a_retry_right_after_a_kill_waits_for_the_leases_that_nobody_prolongs(
    source: SqliteFeedSource,
) -> None:
    """A killed process gives none back; they end at different times, and the task takes over what is left."""
    for shard in (0, 1):
        source.acquire_leases(NAME, FEED, [shard], holder="killed", seconds=0.3 + shard)
    result = consume(until="window_end").execute(context(**WINDOW))
    assert (result["events"], sorted(worked(source))) == (6, [0, 1, 2, 3, 4, 5])


def test_a_window_is_complete_as_soon_as_others_have_finished_it(source: SqliteFeedSource) -> None:
    """Whoever holds the shard then."""
    (row,) = source.acquire_leases(NAME, FEED, [1], holder="another", seconds=600).rows.values()
    first = source.drain(FEED) and source.read_feed(FEED, 1, Ulid.MIN).events
    step = Consumption(1, first[2].ulid, row.resource_version, row.fencing_token, 600.0)

    def finish(event: FeedEvent, connection: sqlite3.Connection) -> None:
        note(event, connection)
        if (event.row or {})["id"] == 4:
            threading.Timer(0.5, others_finish).start()

    def others_finish() -> None:
        with closing(source.open_session(NAME, FEED)) as session, session.transaction():
            session.consume(step)

    result = consume(until="window_end", handler=finish).execute(context(**WINDOW))
    assert (result["events"], sorted(worked(source))) == (3, [0, 2, 4])


def test_a_killed_task_ends_between_events_and_fails(source: SqliteFeedSource) -> None:
    """What it had consumed stays consumed; the rest is a retry's, so it is no success."""
    operator = consume()

    def kill(event: FeedEvent, connection: sqlite3.Connection) -> None:
        note(event, connection)
        operator.on_kill()

    operator.handler = kill
    with pytest.raises(StoppedError, match="stopped on request after 1 events") as caught:
        operator.execute(context())
    assert caught.value.transient
    assert len(worked(source)) == 1


def test_a_handler_that_cannot_be_imported_fails_the_task(source: SqliteFeedSource) -> None:
    """At once, and nothing is consumed."""
    with pytest.raises(AirflowFailException, match="HandlerError: handler 'nowhere:f'"):
        consume(handler="nowhere:f").execute(context())
    assert worked(source) == []


def test_a_decorated_function_is_the_handler(source: SqliteFeedSource) -> None:
    """It gets the event, the connection, the DAG's own arguments, and what it names of the context."""
    with DAG("decorated", schedule=None) as dag:

        @task.changefeed(feed=FEED, consumer=NAME, until="window_end")
        def book(
            event: FeedEvent, connection: sqlite3.Connection, much: int, run_id: str | None = None
        ) -> None:
            """Book an event."""
            connection.execute("insert into work values (?, ?)", ((event.row or {})["id"] * much, run_id))

        book(10)
    operator = dag.get_task("book")
    assert isinstance(operator, ChangefeedConsumeOperator)
    result = operator.execute(context(**WINDOW, run_id="manual"))
    assert result["events"] == 6
    assert sorted(worked(source)) == [0, 10, 20, 30, 40, 50]
    with closing(sqlite3.connect(source.describe()["path"])) as connection:
        assert connection.execute("select distinct note from work").fetchall() == [("manual",)]


def test_a_function_that_takes_no_event_is_refused() -> None:
    """When the DAG is made."""
    with DAG("refused", schedule=None):
        made = task.changefeed(feed=FEED, consumer=NAME)(consume_nothing)
        with pytest.raises(TypeError, match="must take the event and the connection"):
            made()


def consume_nothing() -> None:
    """Take no event."""
