# SPDX-License-Identifier: Apache-2.0
"""Where a driver elsewhere fetches the job's program: what may lie there, and who must not write there."""

from __future__ import annotations

import json
import logging
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit
from airflow.sdk import DAG

from airflow_changefeed.connections.spark import ChangefeedSparkSubmitHook
from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    OutputError,
    SparkEnvironmentError,
    SymbolicLinkError,
)
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.spark import archive
from airflow_changefeed.spark.archive import package_archive, store_program
from airflow_changefeed.tasks.arguments import check_program_path
from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
from airflow_changefeed.transfers.group import changefeed_export_group
from airflow_changefeed.version_compat import AirflowException, AirflowFailException
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_operator import HOUR, path

__all__ = ["path"]  # a fixture
pytestmark = [pytest.mark.airflow]
PLANTED = b'import os; print("planted", os.environ["CHANGEFEED_CONNECTION"])\n#'


@pytest.fixture
def store(tmp_path: Path) -> ExportStore:
    """Give a place for programs."""
    return ExportStore(str(tmp_path / "program"), "")


def test_what_is_not_ours_is_replaced_and_said(store: ExportStore, caplog: pytest.LogCaptureFixture) -> None:
    """Also where it has the size of ours: it was compared by size alone, and ran with the job's secrets."""
    places = store_program(store)
    for place, grows in product(places, (0, 1)):
        target = Path(place)
        ours = target.read_bytes()
        target.write_bytes(PLANTED + b"x" * (len(ours) - len(PLANTED) + grows))
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert store_program(store) == places
        assert target.read_bytes() == ours
        assert f"{target} differed from the file of this version of the package" in caplog.text
    caplog.clear()
    store_program(store)
    assert caplog.text == ""


def test_what_python_would_import_beside_the_job_is_refused(store: ExportStore) -> None:
    """Python looks for modules in the folder of the file that it runs, before its own."""
    job, _ = store_program(store)
    for name in ("argparse.py", "json", "sitecustomize.py", "zipfile.so", "__pycache__"):
        beside = Path(job).with_name(name)
        beside.mkdir() if "." not in name else beside.write_bytes(PLANTED)
        with pytest.raises(OutputError, match=f"holds .*'{name}'.*, which Python could import"):
            store_program(store)
        beside.rmdir() if beside.is_dir() else beside.unlink()
    # Two tasks publish the same program at once: a write that is under way is not strange.
    Path(job).with_name(".job.py.0123abcd").write_bytes(b"")
    store_program(store)


@pytest.mark.parametrize("which", ["job", "package", "folder", "programs"])
def test_a_program_that_is_a_link_is_refused(store: ExportStore, tmp_path: Path, which: str) -> None:
    """What it leads to may become another one later."""
    job, package = store_program(store)
    link = {"job": Path(job), "package": Path(package), "folder": Path(job).parent}.get(
        which, Path(job).parents[1]
    )
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SymbolicLinkError, match=str(link)):
        store_program(store)


@pytest.mark.parametrize("kind", ["link", "writable", "file"])
def test_a_folder_of_archives_that_others_can_write_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The archive there is taken by its name, and runs on all machines of a job."""
    monkeypatch.setattr(archive.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"airflow_changefeed-{os.getuid()}"
    if kind == "link":
        (tmp_path / "own").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "own")
    elif kind == "file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o770)
    with pytest.raises(SparkEnvironmentError, match="only this user can write to"):
        package_archive()
    folder.unlink() if kind != "writable" else folder.chmod(0o700)
    package_archive()


def test_a_place_within_the_output_is_refused(tmp_path: Path) -> None:
    """Whoever can write to the output could write there; the output's own path says that it may be so."""
    for program_path, output in (
        (None, "s3://lake/out"),
        ("s3://programs", "s3://lake/out"),
        ("s3://lake", "s3://lake/out"),
        ("s3://lake/outer", "s3://lake/out"),
        ("s3://lake/out", "s3://lake/out"),
        ("s3://lake/out/", "s3a://lake/out"),
        ("/lake/out", "file:/lake/out"),
    ):
        check_program_path(program_path, output)
    # On a disk links are followed to see.
    (tmp_path / "out" / "x").mkdir(parents=True)
    (tmp_path / "program").symlink_to(tmp_path / "out" / "x")
    for program_path, output in (
        ("s3://lake/out/x", "s3://lake/out"),
        ("s3a://lake/out//x/", "s3://lake/out"),
        ("s3://lake/other/../out/x", "s3://lake/out/"),
        ("/lake/out/x", "/lake/out"),
        ("file:///lake/out/x", "/lake/out"),
        (f"{tmp_path}/program", f"{tmp_path}/out"),
    ):
        with pytest.raises(InvalidArgumentError, match="lies in the output"):
            check_program_path(program_path, output)


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Give the commands by which jobs were submitted to a cluster that loses them."""
    commands: list[list[str]] = []
    monkeypatch.setattr(spark_submit, "kube_client", object(), raising=False)
    extra = {"deploy-mode": "cluster", "namespace": "etl"}
    connection = {"conn_type": "spark", "host": "k8s://https://kubernetes.default.svc:443", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.setattr(ChangefeedSparkSubmitHook, "check", lambda self, **_: None)

    def submit(self: ChangefeedSparkSubmitHook, application: str = "", **kwargs: Any) -> None:
        commands.append(self._build_spark_submit_command(application))
        raise AirflowException("lost")

    monkeypatch.setattr(ChangefeedSparkSubmitHook, "submit", submit)
    return commands


def export(path: str, **more: Any) -> None:
    """Run an export of an hour."""
    task = ChangefeedToParquetOperator(task_id="export", feed=FEED, path=path, consumer=CONSUMER, **more)
    task.execute(context(START, START + HOUR))


@pytest.mark.usefixtures("server")
def test_a_driver_elsewhere_without_a_place_is_refused_before_anything_changes(
    database: str, path: str, submitted: list[list[str]]
) -> None:
    """It took the output's folder, where all who write to the output could replace the program."""
    with pytest.raises(AirflowFailException, match=r"program_path is missing.*the output's path"):
        export(path)
    assert not Path(path).exists()
    assert {one.sealed_until for one in SqliteFeedSource(database).shards(FEED)} == {None}
    assert submitted == []


@pytest.mark.usefixtures("server", "database")
def test_the_program_is_compared_before_each_submit(path: str, submitted: list[list[str]]) -> None:
    """In a place of its own, or in the output's folder where the DAG accepts that."""
    for place in (f"{path}-program", path):
        with pytest.raises(AirflowException, match="lost"):
            export(path, program_path=place)
        job = next(text for text in submitted[-1] if text.endswith("/job.py"))
        assert job.startswith(f"{place}/_changefeed/_programs/")
        ours = Path(job).read_bytes()
        Path(job).write_bytes(b"#" * len(ours))
        with pytest.raises(AirflowException, match="lost"):
            export(path, program_path=place)
        assert Path(job).read_bytes() == ours


@pytest.mark.usefixtures("server", "database")
def test_the_groups_own_task_compares_before_each_submit(path: str, submitted: list[list[str]]) -> None:
    """Not the task that plans, which may have run long before."""
    pushed: dict[str, Any] = {}
    with DAG("dag"):
        group = changefeed_export_group(
            feed=FEED, path=path, consumer=CONSUMER, program_path=f"{path}-program", program_conn_id=None
        )
    tasks: dict[str, Any] = {task.task_id.partition(".")[2]: task for task in group}
    made = context(START, START + HOUR)
    made["ti"].xcom_push = lambda *, key, value: pushed.update({key: value})
    tasks["plan"].execute(made)
    assert (pushed["job_uri"], pushed["archive_uri"]) == ("", "")
    submit = tasks["submit"]
    submit.spec_uri, submit.tasks = pushed["spec_uri"], pushed["tasks"]
    for _ in range(2):
        with pytest.raises(AirflowException, match="lost"):
            submit.execute(made)
        job = Path(next(text for text in submitted[-1] if text.endswith("/job.py")))
        assert b"The one file that ``spark-submit`` runs" in job.read_bytes()
        job.write_bytes(b"#" * len(job.read_bytes()))
    submit.program_path = f"{path}/below"
    with pytest.raises(AirflowFailException, match="lies in the output"):
        submit.execute(made)
    submit.program_path = None
    with pytest.raises(AirflowFailException, match="program_path is missing"):
        submit.execute(made)


@pytest.mark.usefixtures("server", "database")
def test_a_group_compares_each_time_it_plans(path: str, caplog: pytest.LogCaptureFixture) -> None:
    """The user's own operator starts what lies there then."""
    from tests.unit.airflow.test_group import Group

    group = Group(path)
    group.plan()
    job = Path(group.pushed["job_uri"])
    job.write_bytes(b"#" * job.stat().st_size)
    group.plan()
    assert b"The one file that ``spark-submit`` runs" in job.read_bytes()
    assert "differed from the file of this version of the package" in caplog.text
