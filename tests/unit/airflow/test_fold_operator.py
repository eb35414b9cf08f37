# SPDX-License-Identifier: Apache-2.0
"""The operator that folds: its time, what it refuses, and what it hands to its job and takes from it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.connections.spark import ChangefeedSparkSubmitHook
from airflow_changefeed.core.codec import encode
from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    NotExportedError,
    SourceUnavailableError,
    TransientError,
    error_text,
)
from airflow_changefeed.export.request import JobConnection
from airflow_changefeed.export.result import TaskResult
from airflow_changefeed.lake.plan import find_fold
from airflow_changefeed.lake.states import FoldTask, State
from airflow_changefeed.operators.fold import ChangefeedFoldOperator
from airflow_changefeed.spark import fold
from airflow_changefeed.version_compat import AirflowException, AirflowFailException
from tests.examples import examples, run_example
from tests.unit.airflow.fakes import context
from tests.unit.airflow.lineage import columns, completed, names, statistics, use_provider
from tests.unit.export.captures import CAPTURE, TABLE, CapturedExport, Event
from tests.unit.export.flights import START

HOUR = timedelta(hours=1)
ROW = {"id": 1, "name": "boot", "price": None}


class NoSparkError(Exception):
    """The job got as far as to ask for Spark."""


class SubmitHook(ChangefeedSparkSubmitHook):
    """Runs the job without Spark instead of spark-submit, and fails as that one does."""

    tasks: list[FoldTask] = []  # noqa: RUF012 - shared on purpose
    says: TaskResult | None = None

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run the job as far as it goes without Spark."""
        command = self._build_spark_submit_command(application)
        names = ("task", "connection")
        files = {name: Path(command[command.index(f"--{name}") + 1]) for name in names}
        receipt = files["task"].with_name("result.json")
        assert files["connection"].stat().st_mode & 0o777 == 0o600
        task = FoldTask.from_json(files["task"].read_text(), named="task")
        self.tasks.append(task)
        connection = JobConnection.from_json(files["connection"].read_text(), named="connection")
        try:
            fold.run_fold(_no_spark, task, connection, lambda line: None)
        except NoSparkError:
            if self.says is None:
                raise AirflowException("Cannot execute: spark-submit. Error code is: 137.") from None
            receipt.write_text(self.says.to_json())
        except Exception as error:
            receipt.write_text(TaskResult(error=error_text(error)).to_json())
            raise AirflowException("Cannot execute: spark-submit. Error code is: 1.") from error
        return None


def _no_spark() -> Any:
    raise NoSparkError


class InProcessFold(ChangefeedFoldOperator):
    """The operator, with the job in its own process."""

    def _get_hook(self) -> SubmitHook:
        return SubmitHook.of(super()._get_hook())


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CapturedExport:
    """An export of one hour, and the connection to Spark."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setattr(SubmitHook, "tasks", [])
    monkeypatch.setattr(SubmitHook, "says", None)
    export = CapturedExport.create(tmp_path / "out")
    export.write([Event(START + HOUR / 2, "add", None, ROW)])
    return export


def operator(export: CapturedExport, **more: Any) -> InProcessFold:
    """The operator as a DAG has it."""
    given = {"feed": CAPTURE, "path": export.store.path, "output_path": f"{export.store.path}/../states"}
    return InProcessFold(**{"task_id": "fold", **given, **more})


STATE = State(CAPTURE, TABLE, START + HOUR, "01J", "/states/x", ("part-0.parquet",), 1, 100)


def test_the_job_folds_at_the_end_of_the_runs_window(
    export: CapturedExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task says all that it must know, and the result is the state's."""
    monkeypatch.setattr(SubmitHook, "says", TaskResult(encode(STATE)))
    result = operator(export, table=TABLE).execute(context(START, START + HOUR))
    assert result == {name: value for name, value in encode(STATE).items() if name != "base"}
    assert json.loads(json.dumps(result)) == result
    (task,) = SubmitHook.tasks
    assert (task.feed, task.path, task.table, task.at) == (CAPTURE, export.store.path, TABLE, START + HOUR)
    assert task.run == "dag/run/export/1"
    assert FoldTask.from_json(task.to_json(), named="task") == task


def test_a_fold_reports_the_state_that_it_has_written(
    export: CapturedExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the table's columns, rows, bytes and files; they are kept while the task runs."""
    use_provider(monkeypatch)
    facts = find_fold(export.store, START + HOUR).base_facts()
    files = ("part-0.parquet", "part-1.parquet")
    monkeypatch.setattr(
        SubmitHook, "says", TaskResult(encode(replace(STATE, files=files, rows=7, base=facts)))
    )
    task = operator(export)
    task.execute(context(START, START + HOUR))
    found = completed(task)
    assert names(found["inputs"]) == [("file", f"{export.store.path}/{CAPTURE}")]
    (output,) = found["outputs"]
    assert names([output]) == [("file", f"{Path(export.store.path).parent}/states/{TABLE}")]
    assert columns(output) == {"id": "int64", "name": "string", "price": "decimal128(9, 2)"}
    assert statistics(output) == {"rowCount": 7, "size": 100, "fileCount": 2}
    window = found["run_facets"]["changefeed_window"]
    assert (window["feed"], window["at"]) == (CAPTURE, "2013-01-01T01:00:00Z")


@pytest.mark.parametrize("at", ["2013-01-01T00:40:00Z", START + HOUR * 2 / 3, "2013-01-01T01:40:00+01:00"])
def test_a_given_time_counts(export: CapturedExport, monkeypatch: pytest.MonkeyPatch, at: Any) -> None:
    """Before that of the run, which needs none then."""
    monkeypatch.setattr(SubmitHook, "says", TaskResult(encode(STATE)))
    operator(export, at=at).execute(context())
    assert SubmitHook.tasks[0].at == START + HOUR * 2 / 3


@pytest.mark.parametrize(
    ("base", "wanted"),
    [("newest", "newest"), ("beginning", "beginning"), (START, START), ("{{ params.base }}", START)],
    ids=["newest", "beginning", "a time", "a template"],
)
def test_the_base_is_handed_to_the_job(export: CapturedExport, base: Any, wanted: Any) -> None:
    """Where it is a state, it must be there."""
    task = operator(export, base=base)
    task.render_template_fields({"params": {"base": "2013-01-01T00:00:00Z"}})
    refused = pytest.raises(
        AirflowFailException, match=r"has no state of that time, .* Choose another base \(none\)"
    )
    killed = pytest.raises(AirflowException, match="Error code is: 137")
    with refused if wanted == START else killed:
        task.execute(context(START, START + HOUR))
    assert SubmitHook.tasks[0].base == ("2013-01-01T00:00:00Z" if wanted == START else wanted)


def test_the_windows_of_params_and_of_empty_templates_count(
    export: CapturedExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they do for the export."""
    monkeypatch.setattr(SubmitHook, "says", TaskResult(encode(STATE)))
    params = {"window_start": "2013-01-01T00:00:00Z", "window_end": "2013-01-01T00:30:00Z"}
    operator(export, at="None").execute(context(START, START + HOUR, params=params))
    assert SubmitHook.tasks[0].at == START + HOUR / 2


def test_a_run_without_a_window_is_refused(export: CapturedExport) -> None:
    """With what to do; a point is no window."""
    with pytest.raises(AirflowFailException, match="InvalidWindowError: task 'fold' folds at the end of"):
        operator(export).execute(context())
    with pytest.raises(AirflowFailException, match="zero length"):
        operator(export).execute(context(START, START))
    assert SubmitHook.tasks == []


def test_what_the_job_refuses_fails_at_once(export: CapturedExport) -> None:
    """With its class and words, not with those of spark-submit."""
    with pytest.raises(AirflowFailException, match=r"FoldError: .*does not have table 'shop\.Hat'"):
        operator(export, table="shop.Hat").execute(context(START, START + HOUR))
    with pytest.raises(AirflowFailException, match=r"ForeignOutputError: .*lies inside"):
        operator(export, output_path=export.store.layout.data).execute(context(START, START + HOUR))


def test_a_job_that_dies_is_tried_again(export: CapturedExport) -> None:
    """It left no result; spark-submit's own words are the error."""
    with pytest.raises(AirflowException, match="Error code is: 137") as failed:
        operator(export).execute(context(START, START + HOUR))
    assert not isinstance(failed.value, AirflowFailException)


def test_a_transient_error_is_tried_again(export: CapturedExport, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the class that it had; so is a window that another run still exports."""
    with pytest.raises(NotExportedError, match=r"nothing is complete in shard 0 \[2013"):
        operator(export).execute(context(START + HOUR, START + 2 * HOUR))
    says = TaskResult(error=error_text(SourceUnavailableError("away")))
    monkeypatch.setattr(SubmitHook, "says", says)
    with pytest.raises(TransientError, match="away"):
        operator(export).execute(context(START, START + HOUR))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"feed": ""}, "feed is missing"),
        ({"path": None}, "path is missing"),
        ({"output_path": " "}, "output_path is missing"),
        ({"table": ""}, "table is missing"),
        ({"at": "yesterday"}, "at: 'yesterday' is not a time"),
        ({"at": "2013-01-01T00:00:00"}, "at: .*no time zone"),
        ({"at": 5}, "at: 5 is not a time"),
        ({"base": "oldest"}, "base must be .*the time of a state or the begin of a snapshot"),
        ({"base": None}, "base must be 'newest'"),
        ({"application": "x.py"}, "application cannot be given"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_arguments_are_refused_when_the_dag_is_parsed(
    export: CapturedExport, arguments: dict[str, Any], message: str
) -> None:
    """Each by its name."""
    with pytest.raises(InvalidArgumentError, match=message):
        operator(export, **arguments)


def test_all_wrong_arguments_are_named_at_once(export: CapturedExport) -> None:
    """And those that are known late, when they are known."""
    with pytest.raises(InvalidArgumentError) as refused:
        operator(export, feed="", path="", output_path="", at="x")
    assert len(refused.value.problems) == 4
    task = operator(export, feed="{{ params.feed }}", at="{{ params.at }}")
    task.render_template_fields({"params": {"feed": "", "at": "x"}})
    with pytest.raises(AirflowFailException, match=r"feed is missing; at: 'x' is not a time"):
        task.execute(context(START, START + HOUR))


def test_spark_that_cannot_run_is_refused_first(
    export: CapturedExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the job, with the remedy; and so is a connection for the output that is not there."""
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    with pytest.raises(AirflowFailException, match="no connection 'spark_default'"):
        operator(export).execute(context(START, START + HOUR))
    with pytest.raises(AirflowFailException, match=r"ConnectionNotUsableError.*'nowhere'"):
        operator(export, path_conn_id="nowhere").execute(context(START, START + HOUR))
    assert SubmitHook.tasks == []


def test_what_a_dag_may_know_late_is_templated() -> None:
    """And what the provider's operator has templated, but for the job itself."""
    fields = set(ChangefeedFoldOperator.template_fields)
    assert {"feed", "path", "output_path", "table", "at", "conf", "name"} <= fields
    assert "application" not in fields


def test_the_dag_of_the_page_folds_behind_its_export() -> None:
    """As docs/how-to/keep-a-current-table.md shows it."""
    names: dict[str, Any] = {}
    (code,) = (
        code for code in examples("how-to/keep-a-current-table.md#fold-a-capture", {}) if "DAG(" in code
    )
    run_example(code, names)
    task = names["dag"].get_task("state")
    assert isinstance(task, ChangefeedFoldOperator)
    assert task.upstream_task_ids == {"export"}
    assert (task.output_path, task.name) == ("/data/states", "changefeed-fold")
