# SPDX-License-Identifier: Apache-2.0
"""What surrounds a job: its private folder, the environment of spark-submit, what the provider adds to it."""

from __future__ import annotations

import fcntl
import json
import os
import select
import subprocess
import sys
import tempfile
from contextlib import closing
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
from tests.unit.airflow.test_operator import HOUR, operator


@pytest.fixture
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder for temporary files."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def test_what_a_killed_task_left_is_removed_by_the_next(temp: Path) -> None:
    """
    A connection holds secrets: it goes with the next task, and those of living tasks stay. What the task had
    started dies with it. A locked folder is of a task in another container; other names and links are
    nobody's business.
    """
    code = (
        "import os, subprocess, sys\n"
        "from airflow_changefeed.connections.spark import _die_with\n"
        "from airflow_changefeed.tasks.submit import job_folder\n"
        "with job_folder() as folder:\n"
        "    (folder / 'connection.json').write_text('secret')\n"
        "    child = subprocess.Popen(['sleep', '300'], preexec_fn=_die_with(os.getpid()))\n"
        "    print(folder, child.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) as task:
        line = task.stdout.readline().split() if task.stdout else []
        left = Path(line[0])
        child = os.pidfd_open(int(line[1])) if sys.platform == "linux" else None
        assert left.parent == temp
        assert left.stat().st_mode & 0o777 == 0o700
        sweep_folders()
        assert (left / "connection.json").exists(), "the task lives"
        task.kill()
    if child is not None:
        with closing(os.fdopen(child)) as ended:
            assert select.select([ended], [], [], 60)[0], "the child lives on"
    assert (left / "connection.json").exists()
    locked, other, target = temp / f"changefeed-{task.pid}-locked", temp / "changefeed-notes", temp / "target"
    for folder in (locked, other, target):
        folder.mkdir()
    link = temp / f"changefeed-{task.pid}-link"
    link.symlink_to(target)
    handle = os.open(locked, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with job_folder() as one, job_folder() as two:
        assert one != two, "two jobs of one process do not disturb each other"
        sweep_folders()
        assert set(temp.iterdir()) == {one, two, locked, other, target, link}
    os.close(handle)


@pytest.mark.parametrize(
    ("master", "env_vars"), [("spark://host:7077", None), ("yarn", {"PROXY": "one"})], ids=str
)
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


def test_a_local_java_starts_fast_and_obeys_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Java takes the last of options that contradict each other: what anybody else says comes behind ours.
    Executors and driver must be of one version: who names a Python for Spark gets it for both.
    """
    ours = "-XX:+IgnoreUnrecognizedVMOptions -XX:TieredStopAtLevel=1"
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    assert local_environment(None)["SPARK_SUBMIT_OPTS"] == ours
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Xmx2g")
    assert local_environment(None)["SPARK_SUBMIT_OPTS"] == f"{ours} -Xmx2g"
    given = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=4"}
    assert local_environment(given)["SPARK_SUBMIT_OPTS"] == f"{ours} -XX:TieredStopAtLevel=4"
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    monkeypatch.setenv("AIRFLOW_CONN_FAR", json.dumps({"conn_type": "spark", "host": "yarn"}))
    hook = ChangefeedSparkSubmitHook(conn_id="far")
    hook._build_spark_submit_command("job.py")
    assert "PYSPARK_DRIVER_PYTHON" not in (hook._env or {})


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


def test_a_text_says_whether_a_server_is_asked_over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's client would take "yes" for no, and send everything unencrypted."""
    server = {"conn_type": "spark_connect", "host": "spark.example.com", "port": 15002, "login": "me"}
    for said, texts in (("true", (True, "yes", "1", " True")), ("false", ("false", "off", 0))):
        for text in texts:
            found = connected(monkeypatch, **server, extra={"use_ssl": text})
            assert server_url(found) == f"sc://spark.example.com:15002/;user_id=me;use_ssl={said}"


def test_a_field_of_spark_that_means_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry would fail in the same way; the provider's own words name neither connection nor field."""
    for connection, problem in (
        (
            {"conn_type": "spark_connect", "host": "h", "extra": {"use_ssl": "tls"}},
            "use_ssl in its extra must be true or false, not 'tls'",
        ),
        (
            {"conn_type": "spark", "host": "spark://h", "extra": {"rest-port": "6o66"}},
            "rest-port in its extra must be a whole number, 1 to 65535, not '6o66'",
        ),
    ):
        with pytest.raises(SparkEnvironmentError, match=f"connection 'spark_default': {problem}"):
            connected(monkeypatch, **connection)
    found = connected(monkeypatch, conn_type="spark_connect", host="spark.example.com/path")
    with pytest.raises(SparkEnvironmentError, match="the host of Spark Connect connection 'spark_default'"):
        server_url(found)
