# SPDX-License-Identifier: Apache-2.0
"""The operator that takes snapshots: here, by its job, and what it refuses."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.connections.spark import ChangefeedSparkSubmitHook
from airflow_changefeed.exceptions import InvalidArgumentError, TransientError, error_text
from airflow_changefeed.export.request import JobConnection
from airflow_changefeed.export.result import TaskResult
from airflow_changefeed.lake.snapshot_ranges import RangesToRead
from airflow_changefeed.lake.snapshots import SnapshotFiles
from airflow_changefeed.operators.snapshot import ChangefeedSnapshotOperator
from airflow_changefeed.spark.snapshot_job import run_ranges
from airflow_changefeed.version_compat import AirflowException, AirflowFailException
from tests.examples import run_example
from tests.system.example_dags import copy_dags
from tests.unit.airflow.fakes import LocalSpark, context
from tests.unit.lake.stock import CAPTURE, TABLE, Stock


class SubmitHook(ChangefeedSparkSubmitHook):
    """Runs the job in this process instead of spark-submit, and fails as that one does."""

    jobs: list[RangesToRead] = []  # noqa: RUF012 - shared on purpose
    dies_after: int | None = None

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run the job."""
        command = self._build_spark_submit_command(application)
        names = ("task", "connection")
        files = {name: Path(command[command.index(f"--{name}") + 1]) for name in names}
        receipt = files["task"].with_name("result.json")
        assert files["connection"].stat().st_mode & 0o777 == 0o600
        wanted = RangesToRead.from_json(files["task"].read_text(), named="task")
        self.jobs.append(wanted)
        connection = JobConnection.from_json(files["connection"].read_text(), named="connection")
        if self.dies_after is not None:
            raise AirflowException("Cannot execute: spark-submit. Error code is: 137.")
        try:
            run_ranges(LocalSpark, wanted, connection, lambda line: None)  # type: ignore[arg-type]
        except Exception as error:
            receipt.write_text(TaskResult(error=error_text(error)).to_json())
            raise AirflowException("Cannot execute: spark-submit. Error code is: 1.") from error
        receipt.write_text(TaskResult().to_json())
        return None


class InProcessSnapshot(ChangefeedSnapshotOperator):
    """The operator, with the job in its own process."""

    def _get_hook(self) -> SubmitHook:
        return SubmitHook.of(super()._get_hook())


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stock:
    """A captured table, and the connections."""
    stock = Stock.create(tmp_path, rows=50)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    feeds = {"conn_type": "sqlite", "host": stock.source.database.path}
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(feeds))
    monkeypatch.setattr(SubmitHook, "jobs", [])
    monkeypatch.setattr(SubmitHook, "dies_after", None)
    # Here the process of Spark's worker is this one, in which SQLite may be open only once (ADR 0003).
    monkeypatch.setattr("airflow_changefeed.spark.executors.BULK", {})
    return stock


def operator(stock: Stock, **more: Any) -> InProcessSnapshot:
    """The operator as a DAG has it."""
    given = {"feed": CAPTURE, "output_path": stock.lake, "range_rows": 20}
    return InProcessSnapshot(**{"task_id": "snapshot", **given, **more})


def test_the_job_reads_all_ranges(stock: Stock) -> None:
    """It is handed what to read, and the result names the snapshot."""
    result = operator(stock, parallel=2, rows_per_second=1_000_000).execute(context())
    (job,) = SubmitHook.jobs
    assert (job.numbers, job.tasks, job.rows_per_second) == ((0, 1, 2), 2, 1_000_000)
    (taken,) = SnapshotFiles(stock.lake, CAPTURE, TABLE).all()
    assert json.loads(json.dumps(result)) == result
    assert (result["token"], result["rows"], result["table"]) == (taken.token, 50, TABLE)
    assert result["begin"] < result["exact_from"]


def test_a_small_table_is_read_here(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Spark connection."""
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    assert operator(stock, local_below=50).execute(context())["rows"] == 50
    assert SubmitHook.jobs == []


def test_a_part_is_read_by_the_job(stock: Stock) -> None:
    """It is handed the conditions, and the result has them; a template is checked when it is rendered."""
    operator(stock, where="id > {{ params.least }}")
    with pytest.raises(InvalidArgumentError, match="where 'id is 1' cannot be read; expected comparisons"):
        operator(stock, where="id is 1")
    result = operator(stock, where="id > 45").execute(context())
    assert [job.where for job in SubmitHook.jobs] == ["id > 45"]
    assert (result["rows"], result["where"]) == (5, "id > 45")


def test_a_job_that_was_killed_leaves_the_rest_to_the_retry(stock: Stock) -> None:
    """What it said is not known; so Airflow tries again."""
    SubmitHook.dies_after = 0
    with pytest.raises(AirflowException, match="137"):
        operator(stock).execute(context())
    (claim,) = stock.source.snapshots()
    SubmitHook.dies_after = None
    assert operator(stock).execute(context(attempt=2))["token"] == claim.token


def test_an_error_of_the_job_is_the_tasks(stock: Stock) -> None:
    """A terminal one is not tried again."""
    stock.change("update stock set name = x'00' where id = 30")
    with pytest.raises(AirflowFailException, match="'name', declared 'TEXT', cannot be exported unchanged"):
        operator(stock).execute(context())


def test_another_output_is_refused(stock: Stock) -> None:
    """While the first is not done."""
    SubmitHook.dies_after = 0
    with pytest.raises(AirflowException):
        operator(stock).execute(context())
    with pytest.raises(
        AirflowFailException, match=r"that dag/run/export/1 began .* has not ended. Take the snapshot again"
    ):
        operator(stock, output_path=f"{stock.lake}-2", local_below=1000).execute(context())


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"feed": ""}, "feed"),
        ({"table": 5}, "table"),
        ({"range_rows": 0}, "range_rows"),
        ({"parallel": 0}, "tasks"),
        ({"rows_per_second": 0}, "rows_per_second"),
        ({"local_below": -1}, "local_below"),
        ({"application": "job.py"}, "application cannot be given"),
    ],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(
    stock: Stock, wrong: dict[str, Any], named: str
) -> None:
    """By their names."""
    with pytest.raises(InvalidArgumentError, match=named):
        operator(stock, **wrong)


def test_a_snapshot_that_is_there_is_the_result(stock: Stock) -> None:
    """The job is not started again."""
    first = operator(stock, only_if_missing=True).execute(context())
    assert operator(stock, only_if_missing=True).execute(context()) == first
    assert len(SubmitHook.jobs) == 1


def test_maintenance_takes_a_snapshot_when_the_newest_is_old(stock: Stock, tmp_path: Path) -> None:
    """As the example DAG does each night, of the captures that it names."""

    def run(age: timedelta) -> dict[str, Any]:
        names: dict[str, Any] = {}
        given = {"CAPTURES": (CAPTURE,), "FOLD_PATH": stock.lake, "SNAPSHOT_AGE": age}
        folder = copy_dags(tmp_path / "dags", **given)
        run_example((folder / "changefeed_maintain.py").read_text(encoding="utf-8"), names)
        task = names["dag"].get_task(f"snapshot_{CAPTURE}")
        result: dict[str, Any] = task.execute(context())
        return result

    first = run(timedelta(days=30))
    assert first["rows"] == 50
    assert run(timedelta(days=30)) == first
    assert run(timedelta(microseconds=1))["begin"] > first["begin"]


@pytest.mark.parametrize("age", [0, timedelta(days=-1), "a month"])
def test_an_age_that_is_none_is_refused(stock: Stock, age: Any) -> None:
    """With what it may be."""
    with pytest.raises(InvalidArgumentError, match="max_age must be a length of time above 0"):
        operator(stock, max_age=age)


def test_a_gap_is_named_as_transient_once_it_is_resolved(stock: Stock) -> None:
    """A retry takes a new snapshot."""
    SubmitHook.dies_after = 0
    with pytest.raises(AirflowException):
        operator(stock).execute(context())
    SubmitHook.dies_after = None
    stock.source.disable_capture(CAPTURE)
    stock.change("delete from stock where id = 1")
    info = stock.source.capture(CAPTURE)
    stock.source.enable_capture(info.spec)
    stock.source.resolve_capture(CAPTURE, note="seen", by="tests")
    with pytest.raises(TransientError, match="is discarded: the capture missed changes"):
        operator(stock).execute(context())
    assert operator(stock).execute(context())["rows"] == 49
