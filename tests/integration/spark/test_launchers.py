# SPDX-License-Identifier: Apache-2.0
"""What every way to start a job keeps to: killed, failed, started twice, outlived, with a lost receipt."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.exports import verify
from tests.integration.spark.connect import connect_server
from tests.integration.spark.launch import Launched
from tests.unit.airflow.conftest import CONSUMER, FEED, START, database, metadata, server

__all__ = ["database", "metadata", "server"]  # fixtures
pytestmark = [pytest.mark.spark, pytest.mark.airflow, pytest.mark.nightly, pytest.mark.usefixtures("server")]
WAYS = ("spark-submit", "connect", "group")
HOURS, ROWS, UNITS = 6, 36, 12
WINDOW = (START, START + timedelta(hours=HOURS))
Start = Callable[..., Launched]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a Spark Connect server."""
    with connect_server(tmp_path_factory.mktemp("connect")) as port:
        yield port


@pytest.fixture(params=WAYS)
def start(
    request: pytest.FixtureRequest,
    database: str,
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Start:
    """What starts a try of a task that exports six hours of two shards."""
    kind = {"conn_type": "spark", "host": "local[2]"}
    if request.param == "connect":
        kind = {"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": port}  # type: ignore[dict-item]
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(kind))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    def start(attempt: int, **more: Any) -> Launched:
        arguments = {"feed": FEED, "path": str(tmp_path / "out"), "consumer": CONSUMER}
        return Launched(request.param, WINDOW, attempt, **{**arguments, "unit": timedelta(hours=1), **more})

    return start


@pytest.fixture
def store(tmp_path: Path) -> ExportStore:
    """The output."""
    return ExportStore(str(tmp_path / "out"), FEED)


def until_some_is_committed(running: Launched, store: ExportStore) -> None:
    """Return as soon as a unit counts, and not all do."""
    deadline = time.monotonic() + 120
    while not store.list():
        assert not running.has_ended, "it must not end before"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def check_exact(database: str, store: ExportStore) -> None:
    """Check that each row is read once, and that the cursors are at the end."""
    data = Path(store.layout.data)
    found = [number for file in data.rglob("*.parquet") for number in pq.read_table(file)["id"].to_pylist()]
    assert sorted(found) == list(range(ROWS))
    assert verify(store) == []
    places = {row.ulid for row in SqliteFeedSource(database).cursors(FEED, CONSUMER)}
    assert places == {Ulid.floor(WINDOW[1]).previous()}


def test_killed_and_retried(start: Start, database: str, store: ExportStore) -> None:
    """SIGKILL of the task alone, and of all that it has started where the job is another task's."""
    first = start(1, options={"batch_rows": 1})
    until_some_is_committed(first, store)
    first.signal(signal.SIGKILL, all_processes=False)
    result, error = start(2).result()
    assert not error, error
    assert (result["units"], result["rows"]) == (UNITS, ROWS)
    check_exact(database, store)


def test_failed_and_retried(start: Start, database: str, store: ExportStore) -> None:
    """A row is gone: the error says so by its class; when it is back, the retry does what is left."""
    with closing(sqlite3.connect(database)) as connection:
        row = connection.execute('select * from "nyc.Flight" where id = 35').fetchone()
        connection.execute('delete from "nyc.Flight" where id = 35')
        connection.commit()
        _, error = start(1).result()
        assert error.startswith("AirflowFailException: MissingEventError: "), error
        before = {manifest.unit: manifest.attempt for manifest in store.list()}
        connection.execute('insert into "nyc.Flight" values (?, ?)', row)
        connection.commit()
    result, error = start(2).result()
    assert not error, error
    assert (result["units"], result["rows"]) == (UNITS, ROWS)
    after = {manifest.unit: manifest.attempt for manifest in store.list()}
    assert {unit: after[unit] for unit in before} == before, "what was committed stays"
    check_exact(database, store)


def test_started_twice(start: Start, database: str, store: ExportStore) -> None:
    """At the same time: one succeeds at least, and the other harms nothing."""
    both = [start(1), start(2)]
    errors = [one.result()[1] for one in both]
    assert "" in errors
    assert all(not error or "SupersededError" in error for error in errors), errors
    check_exact(database, store)


def test_outlived(start: Start, database: str, store: ExportStore) -> None:
    """The task stands still with all its processes; the next try finishes; then the first one goes on."""
    first = start(1, options={"batch_rows": 1})
    until_some_is_committed(first, store)
    first.signal(signal.SIGSTOP, all_processes=True)
    _, error = start(2).result()
    assert not error, error
    check_exact(database, store)
    first.signal(signal.SIGCONT, all_processes=True)
    _, error = first.result()
    assert not error or "SupersededError" in error or "SpecNotFoundError" in error, error
    check_exact(database, store)


def test_with_a_lost_receipt(start: Start, database: str, store: ExportStore) -> None:
    """The task says so, and moves no cursor; the retry finds everything committed."""
    _, error = start(1, loses_receipt=True).result()
    assert "receipt" in error
    assert SqliteFeedSource(database).cursors(FEED, CONSUMER)[0].ulid < Ulid.floor(WINDOW[1]).previous()
    before = {manifest.unit: manifest.attempt for manifest in store.list()}
    assert len(before) == UNITS
    result, error = start(2).result()
    assert not error, error
    assert result["rows"] == ROWS
    assert {manifest.unit: manifest.attempt for manifest in store.list()} == before
    check_exact(database, store)
