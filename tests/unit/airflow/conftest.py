# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Airflow faces share: metadata in SQLite, a feed, a Spark that needs no JVM."""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.identity import DATABASE, name_database
from tests.templates import content_of
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.fakes import JobHook
from tests.unit.airflow.freshness import Shop

FEED, CONSUMER = "nyc.Flight", "warehouse"
START = datetime(2013, 1, 1, tzinfo=timezone.utc)
KEY = variable_key(DATABASE, CONSUMER, FEED)


@pytest.fixture(scope="session")
def metadata() -> None:
    """Airflow's metadata database in the tests' own home."""
    from airflow.utils.db import initdb

    home = Path(os.environ["AIRFLOW_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    with open(home / "initdb.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other test runs may share the home
        initdb()


@pytest.fixture
def server(metadata: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The surroundings of Airflow's own commands; without the DAGs and the Variables of earlier tests."""
    from airflow.models import Variable
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import delete, update

    with create_session() as session:
        session.execute(update(DagModel).values(is_stale=True))
        ours = delete(Variable).where(Variable.key.startswith("changefeed:"))
        session.execute(ours, execution_options={"synchronize_session": False})
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    # What tests see must not depend on the minute in which they run.
    monkeypatch.setattr("airflow_changefeed.core.completeness._GRACE", timedelta(0))


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A feed with an event every ten minutes from 0 to 6 o'clock, in two shards, and connections."""
    path = str(tmp_path / "feeds.db")
    Path(path).write_bytes(content_of(_make))
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": path}))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    return path


def _make(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, closing(SqliteFeedSource(str(path))) as source:
        connection.execute('create table "nyc.Flight" (id integer primary key, origin text)')
        source.set_up_feed(FEED)
    name_database(path)
    insert(str(path), range(36), START)


def insert(path: str, numbers: range, start: datetime) -> None:
    """Write events, ten minutes apart, through the outbox."""
    with closing(sqlite3.connect(path)) as connection:
        for number in numbers:
            hint = int((start + number * timedelta(minutes=10)).timestamp() * 1000)
            connection.execute('insert into "nyc.Flight" values (?, ?)', (number, "JFK"))
            connection.execute(
                'insert into "changefeed.outbox:nyc.Flight" (shard_id, time_hint, id) values (?, ?, ?)',
                (number % 2, hint, number),
            )
        connection.commit()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where an export goes."""
    return str(tmp_path / "out")


@pytest.fixture
def commands(database: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Commands:
    """Give the commands on a feed with 36 events in two shards, all of them in the outbox."""
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    return Commands(capsys)


@pytest.fixture
def source(database: str) -> SqliteFeedSource:
    """Give the source beneath the commands."""
    return SqliteFeedSource(database)


@pytest.fixture
def exported(server: None, source: SqliteFeedSource) -> SqliteFeedSource:
    """A consumer that has exported three hours of a feed of six, three events of each shard in each."""
    from tests.unit.airflow.cursor_commands import export

    source.seal(FEED, START + timedelta(hours=6))
    export(source, 0, 1, 2)
    return source


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The feeds, and a connection to them."""
    shop = Shop(tmp_path / "shop.db")
    connection = {"conn_type": "sqlite", "host": shop.path, "extra": {"lock_timeout": 0.2}}
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(connection))
    yield shop
    shop.source.close()


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> type[JobHook]:
    """Give the hook of jobs in this process, which has run none yet, and the connection to Spark."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setattr(JobHook, "tasks", [])
    monkeypatch.setattr(JobHook, "says", None)
    return JobHook
