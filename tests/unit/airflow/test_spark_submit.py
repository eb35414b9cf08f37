# SPDX-License-Identifier: Apache-2.0
"""What surrounds a job: its private folder, the environment of spark-submit, what the provider adds to it."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.operators import spark_submit
from airflow.sdk import Connection

from airflow_changefeed.connections.spark import (
    ChangefeedSparkSubmitHook,
    check_pyspark,
    local_environment,
    server_url,
    spark_connection,
)
from airflow_changefeed.exceptions import SparkEnvironmentError
from airflow_changefeed.tasks.submit import job_folder, sweep_folders
from airflow_changefeed.version_compat import AirflowException
from tests.unit.airflow.conftest import START
from tests.unit.airflow.fakes import InProcessHook, context
from tests.unit.airflow.test_operator import HOUR, operator, path

__all__ = ["path"]  # a fixture


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.mark.usefixtures("temp")
def test_two_jobs_of_one_process_do_not_disturb_each_other() -> None:
    """Each has its own folder."""
    with job_folder() as one, job_folder() as two:
        assert one != two
        assert one.exists()


def test_what_a_killed_task_left_is_removed_by_the_next(temp: Path) -> None:
    """A connection holds secrets: it goes with the next task, and those of living tasks stay."""
    code = (
        "import sys\n"
        "from airflow_changefeed.tasks.submit import job_folder\n"
        "with job_folder() as folder:\n"
        "    (folder / 'connection.json').write_text('secret')\n"
        "    print(folder, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as task:
        left = Path(task.stdout.readline().strip() if task.stdout else "")
        assert left.parent == temp
        assert left.stat().st_mode & 0o777 == 0o700
        sweep_folders()
        assert (left / "connection.json").exists(), "the task lives"
        task.kill()
    assert (left / "connection.json").exists()
    with job_folder() as own:
        assert list(temp.iterdir()) == [own]
        sweep_folders()
        assert own.exists()
    assert list(temp.iterdir()) == []


def dead_process() -> int:
    """Return the id of a process that was."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_what_may_be_somebody_elses_stays(temp: Path) -> None:
    """A locked folder is of a task in another container; other names and links are nobody's business."""
    pid = dead_process()
    locked, other, target = temp / f"changefeed-{pid}-locked", temp / "changefeed-notes", temp / "target"
    for folder in (locked, other, target):
        folder.mkdir()
    link = temp / f"changefeed-{pid}-link"
    link.symlink_to(target)
    handle = os.open(locked, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        sweep_folders()
    finally:
        os.close(handle)
    assert set(temp.iterdir()) == {locked, other, target, link}


@pytest.mark.parametrize("master", ["spark://host:7077", "yarn"])
@pytest.mark.parametrize("env_vars", [None, {"PROXY": "one"}], ids=str)
def test_spark_submit_beside_this_python_is_found_for_every_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, master: str, env_vars: dict[str, str] | None
) -> None:
    """The environment that was checked is the one it gets, and none of it goes to other machines."""
    beside, out = tmp_path / "bin", tmp_path / "said"
    beside.mkdir()
    script = beside / "spark-submit"
    lines = '"$PATH" "$PYSPARK_DRIVER_PYTHON" "$PROXY" "$@"'
    script.write_text(f"#!/bin/sh\nprintf '%s\\n' {lines} > {out}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(beside / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_FAR", json.dumps({"conn_type": "spark", "host": master}))
    hook = ChangefeedSparkSubmitHook(conn_id="far", env_vars=env_vars)
    hook.submit("job.py")
    said = out.read_text().splitlines()
    assert said[:3] == [f"/usr/bin:/bin:{beside}", str(beside / "python"), "one" if env_vars else ""]
    assert not any("PATH" in argument or "PYSPARK" in argument for argument in said[3:])


def test_the_start_of_spark_is_not_in_the_log_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the job says, and what else Spark warns of, stays."""
    monkeypatch.setenv("AIRFLOW_CONN_FAR", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    hook = ChangefeedSparkSubmitHook(conn_id="far")
    kept = [
        "26/11/28 08:52:43 WARN TaskSetManager: Lost task 0.0",
        "changefeed job: feed shop.Order, attempt 2",
    ]
    lines = [
        "WARNING: Using incubator modules: jdk.incubator.vector\n",
        "Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties\n",
        "26/11/28 08:52:42 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1\n",
        "26/11/28 08:52:42 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform\n",
        "26/11/28 08:52:49 INFO SparkContext: Running Spark version 4.2.0\n",
        *kept,
    ]
    hook._process_spark_submit_log(iter(lines))
    assert list(hook._last_submit_log_lines) == kept


def test_a_python_that_was_chosen_for_spark_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors and driver must be of one version: who names a Python for Spark gets it for both."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    monkeypatch.setenv("AIRFLOW_CONN_FAR", json.dumps({"conn_type": "spark", "host": "yarn"}))
    hook = ChangefeedSparkSubmitHook(conn_id="far")
    hook._build_spark_submit_command("job.py")
    assert "PYSPARK_DRIVER_PYTHON" not in (hook._env or {})


@pytest.mark.parametrize(
    ("around", "given", "expected"),
    [
        (None, None, ""),
        ("-Xmx2g", None, " -Xmx2g"),
        ("-Xmx2g", {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=4"}, " -XX:TieredStopAtLevel=4"),
    ],
)
def test_a_local_java_starts_fast_and_obeys_others(
    monkeypatch: pytest.MonkeyPatch, around: str | None, given: dict[str, str] | None, expected: str
) -> None:
    """Java takes the last of options that contradict each other: what anybody else says comes behind ours."""
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    if around is not None:
        monkeypatch.setenv("SPARK_SUBMIT_OPTS", around)
    options = local_environment(given)["SPARK_SUBMIT_OPTS"]
    assert options == f"-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1{expected}"


@pytest.mark.airflow
def test_what_openlineage_adds_reaches_spark(
    database: str, server: None, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The provider adds properties when the task runs, and the job gets them, beside ours."""

    def inject(conf: dict[str, str], _: Any) -> dict[str, str]:
        return {**conf, "spark.openlineage.parentRunId": "42"}

    monkeypatch.setattr(spark_submit, "inject_parent_job_information_into_spark_properties", inject)
    task = operator(path, openlineage_inject_parent_job_info=True)
    for attempt in (1, 2):
        task.execute(context(START, START + HOUR, attempt=attempt))
        command = InProcessHook.commands[-1]
        assert "spark.openlineage.parentRunId=42" in command
        assert "spark.log.level=WARN" in command
        folder = Path(command[command.index("--connection") + 1]).parent
        assert folder.name.startswith(f"changefeed-{os.getpid()}-")
    assert InProcessHook.commands[-1] != InProcessHook.commands[-2], "each run has a folder of its own"


@pytest.mark.airflow
def test_a_kill_reaches_the_running_job(
    database: str, server: None, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """on_kill stops the job's own hook; before there is a job it does nothing."""
    killed: list[Any] = []
    task = operator(path)
    task.on_kill()

    def kill(self: InProcessHook) -> None:
        killed.append(self)

    def submit(self: InProcessHook, application: str = "", **kwargs: Any) -> None:
        task.on_kill()
        assert killed == [self]
        raise AirflowException("killed")

    monkeypatch.setattr(InProcessHook, "submit", submit)
    monkeypatch.setattr(InProcessHook, "on_kill", kill)
    with pytest.raises(AirflowException, match="killed"):
        task.execute(context(START, START + HOUR))


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Let pip have installed other versions; the first on the path count."""
    for name, version in versions.items():
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        distribution = name.replace("_", "-")
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_two_versions_of_pyspark_in_one_folder_are_refused_before_anything_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's code and the jars would differ in silence; the error has both versions and the command."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    hook = operator(str(tmp_path / "out"))._get_hook()
    hook.check()
    installed(tmp_path, monkeypatch, pyspark="4.2.9", pyspark_client="4.2.8")
    with pytest.raises(
        SparkEnvironmentError,
        match=r"pyspark 4\.2\.9 and pyspark-client 4\.2\.8 .* pip install --force-reinstall --no-deps "
        r"'pyspark==4\.2\.8' 'pyspark-client==4\.2\.8'$",
    ):
        hook.check()


def test_another_spark_brings_its_own_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SPARK_HOME or PATH name it, what pip has installed is not used."""
    monkeypatch.delenv("SPARK_HOME", raising=False)
    installed(tmp_path / "site", monkeypatch, pyspark="4.2.9", pyspark_client="4.2.8")
    assert check_pyspark({"SPARK_HOME": "/opt/spark"}) is None
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.touch(mode=0o755)
    assert check_pyspark({"PATH": str(submit.parent)}) is None
    with pytest.raises(SparkEnvironmentError):
        check_pyspark({})
    installed(tmp_path / "mended", monkeypatch, pyspark="4.2.8", pyspark_client="4.2.8")
    assert check_pyspark({}) == "4.2.8"


def connected(monkeypatch: pytest.MonkeyPatch, **connection: Any) -> Connection:
    """Return Airflow's connection to Spark."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    return spark_connection("spark_default")


@pytest.mark.parametrize(
    ("given", "is_encrypted"),
    [(True, True), ("yes", True), ("1", True), (" True", True), ("false", False), ("off", False), (0, False)],
)
def test_a_text_says_whether_a_server_is_asked_over_tls(
    monkeypatch: pytest.MonkeyPatch, given: Any, is_encrypted: bool
) -> None:
    """Spark's client would take "yes" for no, and send everything unencrypted."""
    found = connected(
        monkeypatch,
        conn_type="spark_connect",
        host="spark.example.com",
        port=15002,
        login="me",
        extra={"use_ssl": given},
    )
    said = f"use_ssl={'true' if is_encrypted else 'false'}"
    assert server_url(found) == f"sc://spark.example.com:15002/;user_id=me;{said}"


@pytest.mark.parametrize(
    ("connection", "problem"),
    [
        (
            {"conn_type": "spark_connect", "host": "h", "extra": {"use_ssl": "tls"}},
            "use_ssl in its extra must be true or false, not 'tls'",
        ),
        (
            {"conn_type": "spark", "host": "spark://h", "extra": {"rest-port": "6o66"}},
            "rest-port in its extra must be a whole number, 1 to 65535, not '6o66'",
        ),
    ],
)
def test_a_field_of_spark_that_means_nothing_is_named(
    monkeypatch: pytest.MonkeyPatch, connection: dict[str, Any], problem: str
) -> None:
    """A retry would fail in the same way."""
    with pytest.raises(SparkEnvironmentError, match=f"connection 'spark_default': {problem}"):
        connected(monkeypatch, **connection)


def test_a_server_is_named_without_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider's own words name neither the connection nor the field."""
    found = connected(monkeypatch, conn_type="spark_connect", host="spark.example.com/path")
    with pytest.raises(SparkEnvironmentError, match="the host of Spark Connect connection 'spark_default'"):
        server_url(found)
