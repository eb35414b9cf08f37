# SPDX-License-Identifier: Apache-2.0
"""The password of a login that works, and of one that does not, is found nowhere."""

from __future__ import annotations

import io
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing, redirect_stdout
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mssql_python
import pytest

from airflow_changefeed import ChangefeedDataSource, ChangefeedToParquetOperator
from airflow_changefeed.core.cursor import variable_key
from airflow_changefeed.exceptions import ConnectionNotUsableError
from airflow_changefeed.hooks.changefeed import AirflowVariables
from airflow_changefeed.sources.mssql import MssqlFeedSource
from tests.integration.mssql.server import Client, Database
from tests.integration.spark.conftest import spark
from tests.system.canary.sampler import PAGES, Sampler
from tests.system.canary.search import Search, canary
from tests.system.processes import free_port, wait_for
from tests.unit.airflow.conftest import metadata, server
from tests.unit.airflow.fakes import context

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["metadata", "server", "spark"]  # fixtures

FEED = "myservice.Canary"
LOGIN = f"canary_{os.getpid()}"
RIGHT, WRONG = canary("right"), canary("wrong")
START = datetime(2020, 1, 1, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)


@pytest.fixture
def search() -> Search:
    """A search for both passwords."""
    return Search({"right": RIGHT, "wrong": WRONG})


@pytest.fixture(scope="module")
def description(database: Database) -> Iterator[dict[str, Any]]:
    """A feed, and a login with a canary for its password."""
    with database.client() as client:
        client.results(f"create table {FEED} (EventID int not null primary key)")
        client.results(f"exec changefeed.setup_feed N'{FEED}', @outbox = 1")
        for number in range(10):
            client.results(
                f"insert into {FEED} values ({number}); insert into [changefeed].[outbox:{FEED}] "
                f"(shard_id, time_hint, EventID) values (0, '2020-01-01T00:10:00', {number})"
            )
        quoted = RIGHT.replace("'", "''")
        client.results(f"create login {LOGIN} with password = N'{quoted}'")
        try:
            client.results(f"alter server role sysadmin add member {LOGIN}")
            yield {**database.description, "user": LOGIN, "password": RIGHT}
        finally:
            client.results(f"alter server role sysadmin drop member {LOGIN}")
            MssqlFeedSource(**database.description | {"user": LOGIN, "password": RIGHT}).close()
            # As soon as the server has noticed that its connections are closed.
            wait_for("the end of the login", lambda: _is_dropped(client), timeout=60)


def _is_dropped(client: Client) -> bool:
    try:
        client.results(f"drop login {LOGIN}")
    except mssql_python.Error:
        return False
    return True


def test_a_wrong_password_is_not_told(description: dict[str, Any], search: Search) -> None:
    """In the error, its causes and its pickle."""
    source = MssqlFeedSource(**description | {"password": WRONG})
    with pytest.raises(ConnectionNotUsableError) as caught:
        source.feeds()
    search.look_at_error("error", caught.value, LOGIN)
    search.look("objects", f"{source!r} {source.database!r}", "Mssql")
    assert search.leaks == []


@pytest.mark.spark
def test_a_password_in_an_option_is_in_no_plan(
    description: dict[str, Any], spark: SparkSession, search: Search
) -> None:
    """Of a frame that is read: what explain() prints, the UI draws and the event log keeps."""
    ChangefeedDataSource.register(spark)
    given = description | description["driver_options"]
    frame = (
        spark.read.format("changefeed")
        .options(type="mssql", feed=FEED, seal="true", end=(START + HOUR).isoformat())
        .options(**{name: str(given[name]) for name in given.keys() - {"driver_options"}})
        .load()
    )
    frame.createOrReplaceTempView("canary")
    assert frame.count() == 10
    told = io.StringIO()
    with redirect_stdout(told):
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            frame.explain(mode=mode)
        spark.sql("describe extended canary").show(100, truncate=False)
    execution = frame._jdf.queryExecution()
    plans = (execution.logical(), execution.optimizedPlan(), execution.executedPlan())
    search.look("explain", told.getvalue(), "BatchScan", "EventID")
    search.look("plans", f"{execution} {' '.join(plan.toJSON() for plan in plans)}", "changefeed", "EventID")
    assert search.leaks == []


@pytest.fixture
def variable(server: None, description: dict[str, Any]) -> Iterator[str]:
    """The key of the consumer's Variable, which other runs may have left."""
    from airflow.models import Variable

    with closing(MssqlFeedSource(**description)) as source:
        key = variable_key(source.identity().id, "canary", FEED)
    Variable.delete(key)
    yield key
    Variable.delete(key)


@pytest.mark.spark
@pytest.mark.airflow
def test_no_secret_is_found_after_an_export(
    description: dict[str, Any],
    search: Search,
    variable: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Not in process lists, logs, Spark's pages and event log, the output and temporary files."""
    names = {"host": "host", "port": "port", "schema": "database", "login": "user", "password": "password"}
    connection = {name: description[key] for name, key in names.items()}
    extra = {"encrypt": description["encrypt"], "trust_server_certificate": "yes"}
    for name, value in (
        ("CHANGEFEED_DEFAULT", {"conn_type": "mssql", **connection, "extra": extra}),
        ("SPARK_DEFAULT", {"conn_type": "spark", "host": "local[2]"}),
    ):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(value))
    temp, events, out, ui = tmp_path / "temp", tmp_path / "events", tmp_path / "out", free_port()
    temp.mkdir()
    events.mkdir()
    monkeypatch.setenv("TMPDIR", str(temp))
    monkeypatch.setattr(tempfile, "tempdir", str(temp))
    task = ChangefeedToParquetOperator(
        task_id="export",
        feed=FEED,
        path=str(out),
        consumer="canary",
        verbose=True,
        conf={
            "spark.log.level": "DEBUG",
            "spark.ui.enabled": "true",
            "spark.ui.port": str(ui),
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.dir": events.as_uri(),
        },
    )
    sampler = Sampler(search, temp, ui)
    with caplog.at_level(logging.DEBUG), sampler.running():
        result = task.execute(context(START, START + HOUR))
    assert result["rows"] == 10
    said = capsys.readouterr()
    search.look("log", said.out + said.err + caplog.text, "DEBUG SparkContext", "changefeed done: 10 rows")
    search.look("process list", b"\n".join(sampler.commands), "org.apache.spark.deploy.SparkSubmit", "--spec")
    assert set(PAGES) <= sampler.pages.keys()
    search.look("Spark's pages", b"\n".join(sampler.pages.values()), "MapInArrow", "spark.eventLog.dir")
    search.look_into("event log", events, "SparkListenerEnvironmentUpdate", "JobEnd")
    search.look_into("output", out, FEED, "changefeed_ulid")
    search.look_into("temporary files", temp, "airflow_changefeed/__init__.py")
    search.look("result", json.dumps(result), FEED)
    search.look("Variable", AirflowVariables().get(variable) or "", FEED)
    assert sampler.files == {"connection.json": (0o600, 0o700)}
    assert sampler.variables == {"AIRFLOW_CONN_CHANGEFEED_DEFAULT"}
    assert search.leaks == []
