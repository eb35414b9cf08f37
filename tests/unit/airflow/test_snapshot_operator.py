# SPDX-License-Identifier: Apache-2.0
"""The operator that takes snapshots: here, by its job, and what it refuses."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.exceptions import TransientError
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.snapshot_ranges import RangesToRead
from airflow_changefeed.lake.snapshots import SnapshotFiles
from airflow_changefeed.operators.snapshot import ChangefeedSnapshotOperator
from airflow_changefeed.spark.snapshot_job import run_ranges
from airflow_changefeed.version_compat import AirflowException, AirflowFailException
from tests.examples import run_example
from tests.system.example_dags import copy_dags
from tests.unit.airflow.fakes import DiedError, JobHook, LocalSpark, context, in_process
from tests.unit.lake.stock import CAPTURE, TABLE, Stock


class SnapshotHook(JobHook):
    """Runs the job with as much of Spark as it uses."""

    document = RangesToRead

    def run(self, task: RangesToRead, connection: JobConnection) -> None:
        """Read the ranges."""
        run_ranges(LocalSpark, task, connection, lambda line: None)  # type: ignore[arg-type]


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: type[JobHook]) -> Stock:
    """A captured table, and the connection to it."""
    stock = Stock.create(tmp_path, rows=50)
    feeds = {"conn_type": "sqlite", "host": stock.source.database.path}
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(feeds))
    # Here the process of Spark's worker is this one, in which SQLite may be open only once (ADR 0003).
    monkeypatch.setattr("airflow_changefeed.spark.executors.BULK", {})
    return stock


@pytest.fixture
def begun(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> Stock:
    """A job was killed: what it said is not known, so Airflow tries again."""
    with monkeypatch.context() as patched:
        patched.setattr(SnapshotHook, "says", DiedError())
        with pytest.raises(AirflowException, match="137"):
            operator(stock).execute(context())
    return stock


def operator(stock: Stock, **more: Any) -> Any:
    """The operator as a DAG has it."""
    given = {"feed": CAPTURE, "output_path": stock.lake, "range_rows": 20}
    return in_process(ChangefeedSnapshotOperator, SnapshotHook)(**{"task_id": "snapshot", **given, **more})


def test_the_job_reads_all_ranges(stock: Stock) -> None:
    """It is handed what to read, and the result names the snapshot; one that is there is the result."""
    more = {"parallel": 2, "rows_per_second": 1_000_000, "only_if_missing": True}
    result = operator(stock, **more).execute(context())
    (job,) = SnapshotHook.tasks
    assert (job.numbers, job.tasks, job.rows_per_second) == ((0, 1, 2), 2, 1_000_000)
    (taken,) = SnapshotFiles(stock.lake, CAPTURE, TABLE).all()
    assert json.loads(json.dumps(result)) == result
    assert (result["token"], result["rows"], result["table"]) == (taken.token, 50, TABLE)
    assert result["begin"] < result["exact_from"]
    assert operator(stock, **more).execute(context()) == result
    assert len(SnapshotHook.tasks) == 1


def test_a_small_table_is_read_here_and_a_part_by_the_job(
    stock: Stock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first without a Spark connection; the job is handed the conditions, and the result has them."""
    with monkeypatch.context() as patched:
        patched.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
        assert operator(stock, local_below=50).execute(context())["rows"] == 50
    assert SnapshotHook.tasks == []
    result = operator(stock, where="id > 45").execute(context())
    assert [job.where for job in SnapshotHook.tasks] == ["id > 45"]
    assert (result["rows"], result["where"]) == (5, "id > 45")


def test_a_job_that_was_killed_leaves_the_rest_to_the_retry(begun: Stock) -> None:
    """With the same token; another output is refused while the first is not done."""
    (claim,) = begun.source.snapshots()
    with pytest.raises(
        AirflowFailException, match=r"that dag/run/export/1 began .* has not ended. Take the snapshot again"
    ):
        operator(begun, output_path=f"{begun.lake}-2", local_below=1000).execute(context())
    assert operator(begun).execute(context(attempt=2))["token"] == claim.token


def test_an_error_of_the_job_is_the_tasks(stock: Stock) -> None:
    """A terminal one is not tried again."""
    stock.change("update stock set name = x'00' where id = 30")
    with pytest.raises(AirflowFailException, match="'name', declared 'TEXT', cannot be exported unchanged"):
        operator(stock).execute(context())


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


def test_a_gap_is_named_as_transient_once_it_is_resolved(begun: Stock) -> None:
    """A retry takes a new snapshot."""
    begun.source.disable_capture(CAPTURE)
    begun.change("delete from stock where id = 1")
    begun.source.enable_capture(begun.source.capture(CAPTURE).spec)
    begun.source.resolve_capture(CAPTURE, note="seen", by="tests")
    with pytest.raises(TransientError, match="is discarded: the capture missed changes"):
        operator(begun).execute(context())
    assert operator(begun).execute(context())["rows"] == 49
