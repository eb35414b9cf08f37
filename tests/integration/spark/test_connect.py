# SPDX-License-Identifier: Apache-2.0
"""Exports through a Spark Connect server: the operator's task runs the job, and needs no Java."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from airflow_changefeed.connections import spark
from airflow_changefeed.connections.spark import check_versions, connect_session
from airflow_changefeed.exceptions import SparkEnvironmentError, TransientError
from airflow_changefeed.operators.snapshot import ChangefeedSnapshotOperator
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
from airflow_changefeed.version_compat import AirflowFailException, BaseHook
from tests.exports import verify
from tests.integration.spark.connect import connect_server
from tests.unit.airflow.conftest import CONSUMER, FEED, START, database, insert, metadata, server
from tests.unit.airflow.fakes import context
from tests.unit.lake.stock import CAPTURE as STOCK
from tests.unit.lake.stock import Stock

__all__ = ["database", "metadata", "server"]  # fixtures
pytestmark = [
    pytest.mark.ci,
    pytest.mark.spark,
    pytest.mark.airflow,
    pytest.mark.xdist_group("connect"),
    pytest.mark.usefixtures("server"),
]
HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a server."""
    with connect_server(tmp_path_factory.mktemp("connect")) as port:
        yield port


@pytest.fixture
def connected(database: str, port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """A feed, and an Airflow connection to the server; no Java in reach."""
    connection = {"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    return database


def operator(path: Path, **more: Any) -> ChangefeedToParquetOperator:
    """Return the operator, by hours."""
    arguments = {"task_id": "export", "feed": FEED, "path": str(path), "consumer": CONSUMER, "unit": HOUR}
    return ChangefeedToParquetOperator(**{**arguments, **more})


def execute(make: Any, hours: int, attempt: int = 1) -> Any:
    """
    Make a task and run it in a process of its own, as Airflow does: Spark is here or on a server, never both
    in one process.

    :return: the task's result.
    :raises AssertionError: it failed; with its error's class and text.
    """
    spawn = multiprocessing.get_context("spawn")
    answers = spawn.Queue()
    process = spawn.Process(target=_start, args=(make, hours, attempt, answers))
    process.start()
    result, error = answers.get(timeout=200)
    process.join()
    assert not error, error
    return result


def _start(make: Any, hours: int, attempt: int, answers: Any) -> None:
    try:
        result = make().execute(context(START, START + hours * HOUR, attempt=attempt))
        answers.put((result, ""))
    except Exception as error:
        answers.put((None, f"{type(error).__name__}: {error}"))


def ids(path: Path) -> list[int]:
    """Read the ids that plain Parquet readers see."""
    data = Path(ExportStore(str(path), FEED).layout.data)
    files = sorted(data.rglob("*.parquet")) if data.exists() else []
    return sorted(number for file in files for number in pq.ParquetFile(file).read().column("id").to_pylist())


def test_a_task_exports_through_the_server(connected: str, tmp_path: Path) -> None:
    """Six hours of two shards, with the package travelling along; nothing of the attempt is left."""
    result = execute(partial(operator, tmp_path / "out"), 6)
    assert (result["units"], result["rows"]) == (12, 36)
    assert ids(tmp_path / "out") == list(range(36))
    store = ExportStore(str(tmp_path / "out"), FEED)
    assert verify(store) == []
    assert store.files.names(store.layout.attempts) == []


def _run(path: Path) -> None:
    operator(path, options={"batch_rows": 1}).execute(context(START, START + 6 * HOUR))


def test_a_task_that_is_killed_leaves_nothing_that_counts_twice(connected: str, tmp_path: Path) -> None:
    """The server goes on with what it was asked; the next try has a newer token, and does what is left."""
    insert(connected, range(36, 3036), START + 6 * HOUR)
    path = tmp_path / "out"
    store = ExportStore(str(path), FEED)
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(path,))
    process.start()
    deadline = time.monotonic() + 120
    while not store.files.sizes(store.layout.attempts) or not ids(path):
        assert process.is_alive(), "it must not end before it is killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    done = len(store.list())
    result = execute(partial(operator, path, options={"batch_rows": 1}), 6, attempt=2)
    assert done < 12, "it was killed before its end"
    assert (result["units"], result["rows"]) == (12, 36)
    assert ids(path) == list(range(36))
    assert verify(store) == []


def _numbers(*conf: dict[str, str], closes: bool = False) -> list[str]:
    """Open the shared session, then one for each of some settings, and one's own; return their numbers."""
    connection, found = BaseHook.get_connection("spark_default"), []
    for settings, is_shared in (({}, True), *((each, True) for each in conf), ({}, False)):
        with connect_session(connection, settings, is_shared=is_shared) as session:
            client: Any = session.client
            found.append(client._session_id)
            assert session.range(2).count() == 2
            if closes:
                client.release_session()
    return found


def elsewhere(function: Any, *arguments: Any, **named: Any) -> Any:
    """Call a function in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments, named)


def test_tasks_share_a_session_that_stays_and_a_closed_one_is_replaced(connected: str) -> None:
    """By settings; after the server has closed it, each task has one of its own."""
    assert connected
    settings = {"spark.sql.shuffle.partitions": "7"}
    first, second = (elsewhere(_numbers, settings) for _ in range(2))
    assert first[:2] == second[:2]
    assert len({*first, *second}) == 4
    assert elsewhere(_numbers, closes=True)[0] == first[0]
    third, fourth = (elsewhere(_numbers)[0] for _ in range(2))
    assert len({first[0], third, fourth}) == 3


def _stop_itself(path: Path) -> str:
    """Run a task that is asked to stop when it has committed something; return its error."""
    task = operator(path, consumer="stopped", options={"batch_rows": 1})
    store = ExportStore(str(path), FEED)

    has_ended = threading.Event()

    def stop() -> None:
        while not store.list() and not has_ended.wait(0.01):
            pass
        task.on_kill()

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        task.execute(context(START, START + 6 * HOUR))
    except Exception as error:
        return str(error)
    finally:
        has_ended.set()
        thread.join()
    return ""


def test_a_task_that_is_stopped_interrupts_none_of_its_neighbours(connected: str, tmp_path: Path) -> None:
    """Which share its session."""
    insert(connected, range(36, 3036), START + 6 * HOUR)
    with ThreadPoolExecutor() as threads:
        stopped = threads.submit(elsewhere, _stop_itself, tmp_path / "stopped")
        result = execute(partial(operator, tmp_path / "out", options={"batch_rows": 1}), 6)
        error = stopped.result()
    assert result["rows"] == 36
    assert "OPERATION_CANCELED" in error
    assert len(ids(tmp_path / "stopped")) < 36


def test_a_snapshot_is_read_by_the_server(connected: str, tmp_path: Path) -> None:
    """In ranges, and once more where an error ended its first try."""
    stock = Stock.create(tmp_path)
    os.environ["AIRFLOW_CONN_STOCK"] = json.dumps({"conn_type": "sqlite", "host": stock.source.database.path})
    arguments = {"feed": STOCK, "output_path": stock.lake, "changefeed_conn_id": "stock", "range_rows": 30}
    snapshot = partial(ChangefeedSnapshotOperator, task_id="snapshot", **arguments)
    try:
        stock.change("update stock set name = x'00' where id = 100")
        with pytest.raises(AssertionError, match=r"AirflowFailException.*'name', declared 'TEXT', cannot be"):
            execute(snapshot, 1)
        stock.change("update stock set name = 'right' where id = 100")
        taken = execute(snapshot, 1, attempt=2)
    finally:
        del os.environ["AIRFLOW_CONN_STOCK"]
    assert taken["rows"] == 100
    files = Path(taken["path"]).glob("*.parquet")
    assert {row for path in files for row in pq.read_table(path)["id"].to_pylist()} == set(range(1, 101))


def test_a_server_that_is_away_is_named(
    connected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon, as something that may pass; nothing was committed."""
    monkeypatch.setattr(spark, "ANSWER_SECONDS", 0.5)
    connection = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": 1}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    with pytest.raises(TransientError, match="'spark_default' does not answer within"):
        operator(tmp_path / "out").execute(context(START, START + HOUR))
    assert ids(tmp_path / "out") == []


def _outlive_its_server(path: Path) -> str:
    """Run a task with a little patience, and return its error."""
    spark.ASKS = 3
    try:
        operator(path, options={"batch_rows": 1}).execute(context(START, START + 6 * HOUR))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.nightly
def test_a_server_that_dies_fails_the_task_soon(
    database: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As something that may pass; another server does what is left."""
    insert(database, range(36, 3036), START + 6 * HOUR)
    path, store = tmp_path / "out", ExportStore(str(tmp_path / "out"), FEED)

    def connect(to: int) -> None:
        connection = {"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": to}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))

    with ThreadPoolExecutor() as threads:
        with connect_server(tmp_path) as dying:
            connect(dying)
            failed = threads.submit(elsewhere, _outlive_its_server, path)
            while not store.list() and not failed.done():
                time.sleep(0.01)
        began = time.monotonic()
        error = failed.result()
    assert time.monotonic() - began < 60
    assert error.startswith("TransientError")
    connect(port)
    assert execute(partial(operator, path), 6, attempt=2)["rows"] == 36
    assert ids(path) == list(range(36))


def test_a_retry_takes_no_session_that_may_be_broken(
    connected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first try shares one."""
    assert connected
    asked = []

    @contextmanager
    def refuse(connection: Any, conf: Any, *, is_shared: bool) -> Iterator[None]:
        asked.append(is_shared)
        raise TransientError("not now")
        yield

    monkeypatch.setattr(spark, "connect_session", refuse)
    for attempt in (1, 2):
        with pytest.raises(TransientError, match="not now"):
            operator(tmp_path / "out").execute(context(START, START + HOUR, attempt=attempt))
    assert asked == [True, False]


def test_a_server_that_is_older_than_its_client_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark keeps old clients working with new servers, not the other way round."""
    monkeypatch.setattr("pyspark.__version__", "4.1.3")
    check_versions("4.1.0", "lake")
    check_versions("4.2.0", "lake")
    for version in ("4.0.4", "5.0.0", "3.5.8"):
        with pytest.raises(
            SparkEnvironmentError, match=f"'lake' is Spark {version}, and PySpark here is 4.1.3"
        ):
            check_versions(version, "lake")


@pytest.mark.parametrize(
    ("connection", "message"),
    [
        ({"conn_type": "spark_connect"}, "has no host: enter the server's host in the field host"),
        ({"conn_type": "http", "host": "spark"}, "has type 'http'; expected spark or spark_connect"),
    ],
)
def test_an_unusable_connection_is_refused_before_anything(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connection: dict[str, str], message: str
) -> None:
    """With what to do; neither database nor output is touched."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    with pytest.raises(AirflowFailException, match=f"SparkEnvironmentError.*{message}"):
        operator(tmp_path / "out").execute(context(START, START + HOUR))
    assert not (tmp_path / "out").exists()
