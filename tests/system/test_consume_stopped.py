# SPDX-License-Identifier: Apache-2.0
"""A task and a command that consume get a real SIGTERM, as from a drained worker or an evicted pod."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.system.dag_runner import DagRunner

pytestmark = pytest.mark.airflow

FEED = "nyc.Flight"
EVENTS = 36
START = 1_356_998_400_000  # 2013-01-01T00:00Z in milliseconds

#: A DAG whose first try signals its own process, in which Airflow's task runner has its handler.
DAG_FILE = """
import os, signal
from datetime import timedelta
from airflow.sdk import DAG, task
from airflow.timetables.interval import CronDataIntervalTimetable

NONE = timedelta(0)

with DAG("stopped", schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC")) as dag:

    @task.changefeed(feed={feed!r}, consumer="billing", until="window_end", retries=1, retry_delay=NONE)
    def book(event, connection, ti=None):
        connection.execute("insert into work values (?, ?)", (event.row["id"], ti.try_number))
        if ti.try_number == 1 and event.row["id"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    @task
    def after():
        import sqlite3
        with sqlite3.connect({path!r}) as connection:
            connection.execute("insert into seen select count(*) from work")

    book() >> after()

if __name__ == "__main__":
    from datetime import datetime, timezone
    print("STATE", dag.test(logical_date=datetime(2013, 1, 2, tzinfo=timezone.utc)).state)
"""

HANDLER = """
import os, signal

def handle(event, connection):
    connection.execute("insert into work values (?, 1)", (event.row["id"],))
    if event.row["id"] == 2:
        os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.fixture
def feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SqliteFeedSource:
    """A feed with 36 events, its consumer, and tables for work and for what came after it."""
    path = str(tmp_path / "feeds.db")
    source = SqliteFeedSource(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'create table "{FEED}" (id integer primary key)')
        connection.execute("create table work (id integer primary key, try integer)")
        connection.execute("create table seen (events integer)")
        source.set_up_feed(FEED)
        for number in range(EVENTS):
            connection.execute(f'insert into "{FEED}" values (?)', (number,))
            connection.execute(
                f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (?, ?, ?)',
                (number % 2, START + number * 600_000, number),
            )
        connection.commit()
    create_consumer(source, ConsumerSpec("billing", FEED), "earliest", by="tests")
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": path}))
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(tmp_path))
    return source


def rows(feed: SqliteFeedSource, query: str) -> list[tuple[int, ...]]:
    """Ask the database."""
    with closing(sqlite3.connect(feed.describe()["path"])) as connection:
        return connection.execute(query).fetchall()


def test_a_task_that_is_asked_to_stop_fails_and_its_retry_consumes_the_rest(
    feed: SqliteFeedSource, runner: DagRunner, tmp_path: Path
) -> None:
    """Nothing downstream runs on half of a window, and no event is handled twice."""
    (tmp_path / "stopped.py").write_text(DAG_FILE.format(feed=FEED, path=feed.describe()["path"]))
    _, output = runner.python("stopped", folder=tmp_path)
    assert "STATE success" in output, output[-5000:]
    assert "StoppedError" in output
    assert rows(feed, "select count(*), max(try) from work") == [(EVENTS, 2)]
    assert 0 < rows(feed, "select count(*) from work where try = 1")[0][0] < EVENTS
    assert rows(feed, "select events from seen") == [(EVENTS,)]


@pytest.mark.ci
def test_a_command_that_was_to_reach_the_head_says_that_it_did_not(
    feed: SqliteFeedSource, runner: DagRunner, tmp_path: Path
) -> None:
    """Its status is not 0, so a script does not go on with half of the events; run again, it goes on."""
    (tmp_path / "stopping.py").write_text(HANDLER)
    command = [
        "airflow_changefeed",
        "consume",
        "billing",
        "--conn-id",
        "changefeed_default",
        "--handler",
        "stopping:handle",
        "--at-head",
    ]
    status, output = runner.python(*command, folder=tmp_path)
    assert status == 2, output[-3000:]
    assert "StoppedError: stopped before all events" in output
    status, output = runner.python(*command, folder=tmp_path)
    assert status == 0, output[-3000:]
    assert rows(feed, "select count(*) from work") == [(EVENTS,)]
