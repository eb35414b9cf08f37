# SPDX-License-Identifier: Apache-2.0
"""Secrets are found nowhere: a canary is in every place that one can come from, and looked for everywhere."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Set
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from airflow_changefeed import ChangefeedSensor
from airflow_changefeed.exceptions import ChangefeedError, OutputNotWritableError
from airflow_changefeed.hooks.changefeed import ChangefeedHook
from airflow_changefeed.storage.files import open_files
from airflow_changefeed.triggers.changefeed import ChangefeedTrigger, read_event
from tests.system.airflow_home import AirflowHome
from tests.system.canary.places import FEED, START, Places, places
from tests.system.canary.sampler import PAGES, Sampler
from tests.system.canary.search import SPECIAL, Search, canary
from tests.system.canary.servers import repeating_server
from tests.system.dag_runner import DagRunner

pytestmark = [pytest.mark.airflow]

KEYTAB = "airflow_keytab-canary"
CONNECTIONS = ("CANARY_FEED", "CANARY_SQL", "CANARY_STORE", "CANARY_HDFS", "CANARY_SPARK")


def test_the_search_finds_a_canary_however_it_is_written(tmp_path: Path) -> None:
    """In a text and in a file, also where something else stands around it."""
    secret = canary("here")
    for written in (
        secret,
        quote(secret),
        json.dumps(secret),
        secret.split(SPECIAL)[0],
        base64.b64encode(f"a:{secret}!".encode()).decode(),
        base64.urlsafe_b64encode(secret.encode()).decode(),
        secret.encode().hex(),
    ):
        text = f"before {written} after"
        search = Search({"here": secret, "there": canary("there")})
        search.look("text", text, "before")
        (tmp_path / "file").write_text(text)
        search.look_into("folder", tmp_path, "before")
        assert search.leaks == ["text holds the canary of here", "folder: file holds the canary of here"]
    with pytest.raises(AssertionError, match="not searched"):
        search.look("text", "something else", "marker")


def fire(conn_id: str) -> None:
    """Run a trigger until it gives up, and raise what it met."""
    waiting = ChangefeedTrigger(
        feed=FEED, consumer="canary", changefeed_conn_id=conn_id, poke_interval=0, most_failures=1
    )

    async def event() -> object:
        (found,) = [event.payload async for event in waiting.run()]
        return found

    read_event(asyncio.run(event()))


def say(conn_id: str) -> None:
    """Test a connection as Airflow's form does, and raise what it says."""
    raise LookupError(ChangefeedHook(conn_id).test_connection()[1])


@pytest.mark.parametrize(
    "fail",
    [
        lambda conn_id: ChangefeedHook(conn_id).source().feeds(),
        lambda conn_id: ChangefeedSensor(
            task_id="wait", feed=FEED, consumer="canary", changefeed_conn_id=conn_id
        ).execute({}),
        fire,
        say,
    ],
    ids=["source", "sensor", "trigger", "test_connection"],
)
def test_no_secret_is_in_an_error_of_the_server(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fail: Callable[[str], object],
) -> None:
    """Of a server that speaks garbage: not in the error, its causes and its pickle, nor in what is logged."""
    # The pauses between attempts are tested elsewhere.
    monkeypatch.setattr("tenacity.nap.time", SimpleNamespace(sleep=lambda seconds: None))
    with places(tmp_path) as run, caplog.at_level(logging.DEBUG):
        for name, value in run.environment.items():
            if name.startswith("AIRFLOW_CONN_"):
                monkeypatch.setenv(name, value)
        with pytest.raises((ChangefeedError, LookupError)) as caught:
            fail("canary_sql")
        run.search.look_at_error("error", caught.value, "127.0.0.1")
        run.search.look("log", f"{caplog.text}end", "end")
        assert run.search.leaks == []


def test_no_secret_is_in_an_error_of_the_storage(tmp_path: Path) -> None:
    """Of a storage that repeats in its refusal what it was asked, with the token in it."""
    token = canary("token")
    search = Search({"token": token})
    with repeating_server() as (port, requests):
        files = open_files(f"webhdfs://127.0.0.1:{port}/out", {"token": token})
        for call in (files.read, files.names, lambda path: files.write(path, b"1")):
            with pytest.raises(OutputNotWritableError) as caught:
                call("/out/file")
            search.look_at_error("error", caught.value, "/out", "403")
    assert any(search.found(request) for request in requests), "the storage got its token"
    assert search.leaks == []


def check_spark(run: Places, sampler: Sampler, stored: Set[str] = frozenset()) -> None:
    """Look at what Spark has shown and left, and at what lay in files meanwhile."""
    search = run.search
    search.look("process list", b"\n".join(sampler.commands), "org.apache.spark.deploy.SparkSubmit", "--spec")
    assert set(PAGES) <= sampler.pages.keys(), "Spark's pages were not seen"
    for path, content in sampler.pages.items():
        search.look(f"Spark's page {path}", content, '"' if path.startswith("/api") else "changefeed export")
    search.look("Spark's queries", sampler.pages["/SQL/execution/?id=0"], "MapInArrow")
    search.look("Spark's environment", sampler.pages["/environment/"], "spark.eventLog.dir")
    search.look_into("event log", run.events, "SparkListenerEnvironmentUpdate", "MapInArrow", "JobEnd")
    # While a job runs its connection lies in a file; that this was seen shows that files were looked at.
    assert sampler.files.pop("connection.json") == (0o600, 0o700)
    # Spark's provider writes the keytab beside its place, and moves it there.
    assert {modes[0] for modes in sampler.files.values()} == {0o600}
    assert {name.lstrip(".")[: len(KEYTAB)] for name in sampler.files} == {KEYTAB}
    # Environments can be read by their owner alone. There Airflow itself keeps connections.
    assert sampler.variables == {f"AIRFLOW_CONN_{name}" for name in CONNECTIONS} - stored


def check_output(run: Places) -> None:
    """Look at all files of the export, and at what is left in the folder of temporary files."""
    run.search.look_into("output", run.out, FEED, "changefeed_ulid", "manifest", ".parquet")
    # Airflow's provider keeps the keytab for the next task.
    (run.temp / KEYTAB).unlink()
    run.search.look_into("temporary files", run.temp, "airflow_changefeed/__init__.py")


@pytest.mark.ci
@pytest.mark.spark
def test_no_secret_is_found_after_a_run(
    runner: DagRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export by Spark, and tasks that fail at storage and server, with everything said at debug level."""
    with places(tmp_path) as run:
        # At debug level, the supervisor of dag.test itself repeats what it is asked to mask.
        own = {"AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO", "AIRFLOW__CORE__DAGS_FOLDER": str(run.dags)}
        for name, value in (run.environment | own).items():
            monkeypatch.setenv(name, value)
        sampler = Sampler(run.search, run.temp, run.ui)
        with sampler.running():
            said = runner.run(("canary", (START + timedelta(hours=1)).isoformat(), None)).output
        (tmp_path / "said.log").write_text(said)
        run.search.look(
            "task logs",
            said,
            "DEBUG SparkContext",
            "changefeed done: 6 rows",
            "OutputNotWritableError",
            "SourceUnavailableError",
        )
        run.search.look_at_metadata(
            f"sqlite:///{runner.home}/airflow.db",
            {
                "variable": f":canary:{FEED}",
                "xcom": "manifests",
                "rendered_task_instance_fields": str(run.out),
                "task_instance": "refused_by_the_server",
            },
        )
        run.search.look_into("Airflow's home", runner.home, "airflow.db")
        assert any(b"delegation=" in request for request in run.requests), "the storage got its token"
        check_spark(run, sampler)
        check_output(run)
        assert run.search.leaks == []


@pytest.mark.spark
@pytest.mark.nightly
def test_no_secret_is_found_in_a_whole_airflow(tmp_path: Path) -> None:
    """In scheduler, triggerer and API server, all at debug level, and in what a person asks them for."""
    with places(tmp_path) as run:
        environment = {**run.environment, "CANARY_TRIGGER": "yes"}
        # This one lies in Airflow's database, as most people's do.
        stored = environment.pop("AIRFLOW_CONN_CANARY_HDFS")
        home = AirflowHome(tmp_path / "home", dags=run.dags, env=environment)
        sampler = Sampler(run.search, run.temp, run.ui)
        with sampler.running(), home:
            home.wait_for_dags("canary")
            connection = json.loads(stored)
            home.api.add_connection("canary_hdfs", connection | {"extra": json.dumps(connection["extra"])})
            made = home.api.trigger("canary", logical_date=START + timedelta(hours=1))
            home.wait_for("the run", lambda: home.api.run("canary", made.run_id).is_finished, timeout=600)
            look_at_answers(run, home, made.run_id)
            look_at_commands(run, home)
            run.search.look_at_metadata(
                home.postgres.sqlalchemy_url,
                {
                    "variable": f":canary:{FEED}",
                    "xcom": "manifests",
                    "rendered_task_instance_fields": str(run.out),
                    "task_instance": "refused_by_the_server",
                    "log": "canary",
                },
            )
        run.search.look_into(
            "logs of tasks", home.folder / "logs", "DEBUG SparkContext", "urllib3.connectionpool"
        )
        run.search.look_into(
            "logs of services", home.logs, "triggerer.log", "scheduler.log", "dag-processor.log"
        )
        assert any(b"delegation=" in request for request in run.requests), "the storage got its token"
        check_spark(run, sampler, {"AIRFLOW_CONN_CANARY_HDFS"})
        check_output(run)
        assert run.search.leaks == []


def look_at_answers(run: Places, home: AirflowHome, run_id: str) -> None:
    """Look at what the REST API, and so the UI, tells of a run."""
    words = {
        "export": "changefeed done: 6 rows",
        "refused_by_the_storage": "OutputNotWritableError",
        "refused_by_the_server": "SourceUnavailableError",
        "failing_look": "SourceUnavailableError",
        "failing_trigger": "SourceUnavailableError",
    }
    states = {task.task_id: task.state for task in home.api.task_instances("canary", run_id)}
    assert states.pop("export") == "success"
    assert states.keys() == words.keys() - {"export"}
    for task, word in words.items():
        run.search.look(f"task log of {task}", home.api.task_log("canary", run_id, task), word)
    run.search.look("XCom", json.dumps(home.api.xcom("canary", run_id, "export")), FEED)
    run.search.look("Variables", json.dumps(home.api.variables()), FEED)


def look_at_commands(run: Places, home: AirflowHome) -> None:
    """Look at what commands print."""
    ours = ("--path", f"webhdfs://127.0.0.1:{run.environment['CANARY_HDFS']}/out", "--feed", FEED)
    whole = ("--path", str(run.out), "--feed", FEED)
    for arguments, words in (
        ((*whole, "--path-conn-id", "canary_store", "--conn-id", "canary_feed"), "damaged: 0"),
        ((*ours, "--path-conn-id", "canary_hdfs"), "OutputNotWritableError"),
        ((*whole, "--conn-id", "canary_sql"), "SourceUnavailableError"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "airflow_changefeed", "verify", *arguments],
            env=home.environment(),
            cwd=home.folder,
            capture_output=True,
            timeout=120,
            check=False,
        )
        run.search.look("airflow-changefeed verify", done.stdout + done.stderr, words)
