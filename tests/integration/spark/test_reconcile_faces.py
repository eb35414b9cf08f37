# SPDX-License-Identifier: Apache-2.0
"""The operator and the command that compare a table with its export."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_changefeed.connections.spark import ChangefeedSparkSubmitHook
from airflow_changefeed.exceptions import InvalidArgumentError, NotExportedError
from airflow_changefeed.lake.snapshots import SnapshotFiles
from airflow_changefeed.operators.snapshot import ChangefeedReconcileOperator
from airflow_changefeed.spark import job
from airflow_changefeed.version_compat import AirflowException, AirflowFailException
from tests.integration.spark.shop import Shop
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.fakes import context
from tests.unit.airflow.lineage import completed, names, use_provider
from tests.unit.lake.stock import CAPTURE, TABLE, Stock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class SubmitHook(ChangefeedSparkSubmitHook):
    """Runs the job in this process instead of spark-submit, and fails as that one does."""

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run the job."""
        assert Path(application).name == "job.py"
        assert Path(application).exists()
        command = self._build_spark_submit_command(application)
        if job.main(command[command.index("--task") : command.index("--watch-pid")]):
            raise AirflowException("Cannot execute: spark-submit. Error code is: 1.")
        return None


class InProcessReconcile(ChangefeedReconcileOperator):
    """The operator, with the job in its own process."""

    def _get_hook(self) -> SubmitHook:
        return SubmitHook.of(super()._get_hook())


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """A captured table with a snapshot, and the connections."""
    shop = Shop(spark, Stock.create(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    feeds = {"conn_type": "sqlite", "host": shop.stock.source.database.path}
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(feeds))
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    return shop


def operator(shop: Shop, **more: Any) -> InProcessReconcile:
    """The operator as a DAG has it; it reads the small table itself."""
    given = {"feed": CAPTURE, "path": shop.stock.export, "output_path": shop.stock.lake, "local_below": 1_000}
    return InProcessReconcile(**{"task_id": "reconcile", **given, **more})


def pushed(task: InProcessReconcile, given: Any) -> dict[str, Any]:
    """Run a task that fails because of differences; return the result that it leaves."""
    results: dict[str, Any] = {}
    given["ti"].xcom_push = lambda key, value: results.update({key: value})
    with pytest.raises(
        AirflowFailException, match=r"ReconcileError: table 'shop.stock' .* missing in the export"
    ):
        task.execute(given)
    found: dict[str, Any] = results["return_value"]
    return found


def test_a_task_waits_for_the_export_and_compares(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deferred, without reading the table again; result and lineage say what was compared, and when."""
    use_provider(monkeypatch)
    task = operator(shop)
    with pytest.raises(TaskDeferred) as deferred:
        task.execute(context())
    assert deferred.value.method_name == "execute_complete"
    shop.export()
    result = task.execute_complete(context())
    assert json.loads(json.dumps(result)) == result
    assert (result["equal"], result["rows"], result["repaired"], result["table"]) == (True, 100, False, TABLE)
    assert Path(result["report"]).exists()
    found = completed(task)
    namespace = f"sqlite:{shop.stock.source.database.path}"
    assert names(found["inputs"]) == [(namespace, TABLE), ("file", f"{shop.stock.export}/{CAPTURE}")]
    assert found["outputs"] == []
    window = found["run_facets"]["changefeed_window"]
    assert (window["feed"], window["at"]) == (CAPTURE, result["at"])


def test_a_task_that_has_waited_long_enough_is_retried(shop: Shop) -> None:
    """It is not deferred for ever, or at all."""
    with pytest.raises(NotExportedError, match="a retry within a day compares the rows that were read"):
        operator(shop, wait_timeout=0).execute(context())


@pytest.mark.ci
def test_differences_fail_a_task_or_are_its_result(shop: Shop) -> None:
    """Or are mended."""
    shop.behind("update stock set name = 'x' where id = 10")
    shop.stock.change("update stock set amount = 1.5 where id = 11")
    with pytest.raises(TaskDeferred):
        operator(shop).execute(context())
    shop.export()
    found = pushed(operator(shop), context())
    assert (found["equal"], found["different"]) == (False, 1)
    for more in ({"on_difference": "report"}, {"repair": True}):
        with pytest.raises(TaskDeferred):
            operator(shop).execute(context())
        shop.export()
        given = context()
        given["ti"].xcom_push = lambda key, value: None
        result = operator(shop, **more).execute(given)
        assert (result["equal"], result["repaired"]) == (False, "repair" in more)
    assert len(SnapshotFiles(shop.stock.lake, CAPTURE, TABLE).all()) == 2


@pytest.mark.ci
def test_an_error_of_the_job_is_the_tasks(shop: Shop) -> None:
    """By its class: a terminal one is not tried again."""
    with pytest.raises(TaskDeferred):
        operator(shop, base="beginning").execute(context())
    shop.export()
    with pytest.raises(AirflowFailException, match=r"FoldError: .* did not record the rows that existed"):
        operator(shop, base="beginning").execute(context())


def test_wrong_arguments_are_refused_when_the_dag_is_parsed() -> None:
    """By their names."""
    for wrong, named in (
        ({"path": ""}, "path"),
        ({"on_difference": "ignore"}, "on_difference must be one of fail, report"),
        ({"wait_timeout": -1}, "wait_timeout"),
        ({"base": "oldest"}, "base must be"),
        ({"repair": True, "where": "id > 5"}, "repair needs the whole table"),
        ({"rows_per_second": 0}, "rows_per_second"),
        ({"application": "job.py"}, "application cannot be given"),
    ):
        given = {"feed": CAPTURE, "path": "/data/export", "output_path": "/data/lake"}
        with pytest.raises(InvalidArgumentError, match=named):
            ChangefeedReconcileOperator(**{"task_id": "reconcile", **given, **wrong})


@pytest.mark.ci
def test_the_command_compares_here(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """Its status says whether they are equal; before the next export it says what to do."""
    commands = Commands(capsys)
    arguments = (
        "--feed",
        CAPTURE,
        "--path",
        shop.stock.export,
        "--output-path",
        shop.stock.lake,
        "--output",
        "json",
    )
    shop.behind("update stock set name = 'x' where id = 10")
    assert commands.run("reconcile", *arguments) == 2
    assert re.search(r"Export the windows that end by \S+Z; a retry within a day", commands.err)
    shop.export()
    assert commands.run("reconcile", *arguments) == 1, commands.err
    (row,) = json.loads(commands.out)
    assert (row["different"], row["rows"], row["equal"], row["repaired"]) == (1, 100, False, False)
    assert "id=10 is different in name. Report: " in commands.err
    assert commands.run("reconcile", *arguments, "--repair") == 2
    shop.export()
    assert commands.run("reconcile", *arguments, "--repair") == 0, commands.err
    assert json.loads(commands.out)[0]["repaired"]
