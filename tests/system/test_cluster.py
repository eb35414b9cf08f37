# SPDX-License-Identifier: Apache-2.0
"""An export on a Spark cluster, with the settings of docs/how-to/run-on-a-cluster.md."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit

from airflow_changefeed import ChangefeedToParquetOperator
from airflow_changefeed.connections.spark import ChangefeedSparkSubmitHook
from airflow_changefeed.exceptions import SparkEnvironmentError, TransientError
from airflow_changefeed.output.store import ExportStore
from tests.examples import examples, run_example
from tests.exports import verify
from tests.system.spark_cluster import Cluster, other_python, spark_cluster
from tests.unit.airflow.conftest import FEED, START, database, metadata, server
from tests.unit.airflow.fakes import context

__all__ = ["database", "metadata", "server"]  # fixtures

pytestmark = pytest.mark.airflow

PAGE = "how-to/run-on-a-cluster.md"
CLUSTERS = ("standalone", "yarn", "kubernetes", "connect")
HOURS = 6


@pytest.fixture(autouse=True)
def _no_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable names a Python for Spark, as on a machine where Airflow is installed and nothing else."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)


def documented(
    monkeypatch: pytest.MonkeyPatch, places: Mapping[str, object]
) -> dict[str, ChangefeedToParquetOperator]:
    """Make the page's connections, and return its operators by the name of the cluster."""
    for name, connection in zip(CLUSTERS, examples(PAGE, places, "json"), strict=True):
        monkeypatch.setenv(f"AIRFLOW_CONN_SPARK_{name.upper()}", connection)
    names: dict[str, Any] = {}
    for code in examples(PAGE, places):
        run_example(code, names)
    return {name: names[name] for name in CLUSTERS}


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        (
            "standalone",
            ["--master spark://spark-master:7077", "spark.pyspark.python=/opt/changefeed/bin/python"],
        ),
        ("yarn", ["--master yarn", "--archives hdfs:///envs/changefeed.tar.gz#environment", "--queue etl"]),
        (
            "kubernetes",
            ["--master k8s://https://kubernetes.default.svc:443", "spark.kubernetes.namespace=etl"],
        ),
    ],
)
def test_the_documented_settings_reach_spark_submit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cluster: str, words: list[str]
) -> None:
    """As the page means them; the driver keeps the Python of the task, whatever that of the executors is."""
    # Of Airflow's provider of Kubernetes; needed to stop pods, not to build the command.
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    task = documented(monkeypatch, {})[cluster]
    task._prepare({"spec": "s3://lake/spec.json", "connection": str(tmp_path / "connection.json")})
    hook = task._get_hook()
    assert not hook.is_local
    command = " ".join(hook._build_spark_submit_command(task.application))
    for word in [*words, f"spark.pyspark.driver.python={sys.executable}", "--py-files", "--spec"]:
        assert word in command
    assert "--deploy-mode cluster" not in command


@pytest.mark.usefixtures("server")
def test_a_driver_elsewhere_finds_all_it_needs(
    monkeypatch: pytest.MonkeyPatch, database: str, tmp_path: Path
) -> None:
    """In deploy mode cluster: file, package and spec by their URIs, no connection, and nobody to watch."""
    commands: list[list[str]] = []
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    extra = {"deploy-mode": "cluster", "namespace": "etl"}
    connection = {"conn_type": "spark", "host": "k8s://https://kubernetes.default.svc:443", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))

    def submit(self: ChangefeedSparkSubmitHook, application: str = "", **kwargs: Any) -> None:
        commands.append(self._build_spark_submit_command(application))

    monkeypatch.setattr(ChangefeedSparkSubmitHook, "submit", submit)
    task = ChangefeedToParquetOperator(
        task_id="export",
        feed=FEED,
        path=str(tmp_path / "out"),
        program_path=str(tmp_path / "program"),
        consumer="warehouse",
    )
    with pytest.raises(TransientError, match="ended without a receipt"):
        task.execute(context(START, START + timedelta(hours=1)))
    [command] = commands
    programs = str(tmp_path / "program" / "_changefeed" / "_programs")
    assert command[command.index("--deploy-mode") + 1] == "cluster"
    assert command[command.index("--py-files") + 1].startswith(f"{programs}/airflow_changefeed-")
    assert [text for text in command if text.startswith(programs) and text.endswith("/job.py")]
    assert "--spec" in command
    assert not {"--connection", "--watch-pid"}.intersection(command)


def test_kubernetes_without_its_provider_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's own provider would end with a NameError."""
    monkeypatch.delattr(spark_submit, "kube_client", raising=False)
    task = documented(monkeypatch, {})["kubernetes"]
    with pytest.raises(SparkEnvironmentError, match="pip install apache-airflow-providers-cncf-kubernetes"):
        task._get_hook()


def test_a_python_for_the_driver_that_was_named_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the settings, or in the environment."""
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "/opt/driver")
    task = documented(monkeypatch, {})["yarn"]
    assert "spark.pyspark.driver.python=/opt/driver" in " ".join(
        task._get_hook()._build_spark_submit_command("job.py")
    )
    task.conf = {"spark.pyspark.driver.python": "/opt/other"}
    command = " ".join(task._get_hook()._build_spark_submit_command("job.py"))
    assert "spark.pyspark.driver.python=/opt/other" in command
    assert "/opt/driver" not in command


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A standalone cluster."""
    with spark_cluster(tmp_path) as running:
        yield running


@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("way", ["installed", "archive"])
def test_an_export_runs_on_a_standalone_cluster(
    database: str, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Executors whose Python has neither Airflow nor this package nor pandas write every event once."""
    python = other_python(tmp_path / "env")
    places = {
        "spark://spark-master:7077": cluster.master,
        "/opt/changefeed/bin/python": python,
        "/data/export": tmp_path / "out",
    }
    task = documented(monkeypatch, places)["standalone"]
    if way == "archive":
        with tarfile.open(tmp_path / "changefeed.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "env", arcname=".")
        task._archives = f"{tmp_path}/changefeed.tar.gz#environment"
        task.conf = {"spark.pyspark.python": "./environment/bin/python"}
        (tmp_path / "env").rename(tmp_path / "gone")
    result = task.execute(context(START, START + timedelta(hours=HOURS)))
    assert (result["rows"], result["units"]) == (6 * HOURS, 2 * HOURS)
    assert verify(ExportStore(str(tmp_path / "out"), task.feed)) == []
    logs = cluster.logs()
    assert "Starting executor ID" in logs
    assert "airflow_changefeed-" in logs, "the package came with the job"


def test_the_documented_connections_are_json() -> None:
    """One for each cluster, as Airflow takes it."""
    connections = [json.loads(text) for text in examples(PAGE, {}, "json")]
    assert [connection["conn_type"] for connection in connections] == ["spark"] * 3 + ["spark_connect"]
