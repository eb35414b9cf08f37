# SPDX-License-Identifier: Apache-2.0
"""The operator that folds: its time, what it refuses, and what it hands to its job and takes from it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.codec import encode
from airflow_changefeed.exceptions import NotExportedError, SourceUnavailableError, TransientError
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.fold_plan import FoldTask, find_fold
from airflow_changefeed.lake.states import State
from airflow_changefeed.operators.fold import ChangefeedFoldOperator
from airflow_changefeed.spark import fold
from airflow_changefeed.version_compat import AirflowException, AirflowFailException
from tests.examples import examples, run_example
from tests.unit.airflow.fakes import DiedError, JobHook, context, in_process
from tests.unit.airflow.lineage import columns, completed, names, statistics, use_provider
from tests.unit.export.captures import CAPTURE, TABLE, CapturedExport, Event
from tests.unit.export.flights import START

HOUR = timedelta(hours=1)
ROW = {"id": 1, "name": "boot", "price": None}
STATE = State(CAPTURE, TABLE, START + HOUR, "01J", "/states/x", ("part-0.parquet", "part-1.parquet"), 7, 100)


class NoSparkError(Exception):
    """The job got as far as to ask for Spark."""


class FoldHook(JobHook):
    """Runs the job as far as it goes without Spark."""

    document = FoldTask

    def run(self, task: FoldTask, connection: JobConnection) -> Any:
        """Fold, and give what the test says of the rest."""

        def no_spark() -> Any:
            raise NoSparkError

        with pytest.raises(NoSparkError):
            fold.run_fold(no_spark, task, connection, lambda line: None)
        return self.says


@pytest.fixture
def export(tmp_path: Path, jobs: type[JobHook]) -> CapturedExport:
    """An export of one hour."""
    jobs.says = STATE
    export = CapturedExport.create(tmp_path / "out")
    export.write([Event(START + HOUR / 2, "add", None, ROW)])
    return export


def operator(export: CapturedExport, **more: Any) -> Any:
    """The operator as a DAG has it."""
    given = {"feed": CAPTURE, "path": export.store.path, "output_path": f"{export.store.path}/../states"}
    return in_process(ChangefeedFoldOperator, FoldHook)(**{"task_id": "fold", **given, **more})


def test_the_job_folds_at_the_end_of_the_runs_window(
    export: CapturedExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task says all that it must know; the result is the state's, and OpenLineage gets its columns."""
    use_provider(monkeypatch)
    monkeypatch.setattr(FoldHook, "says", replace(STATE, base=find_fold(export.store).base_facts()))
    task = operator(export)
    result = task.execute(context(START, START + HOUR))
    assert result == {name: value for name, value in encode(STATE).items() if name != "base"}
    assert json.loads(json.dumps(result)) == result
    (handed,) = FoldHook.tasks
    assert (handed.feed, handed.path, handed.at) == (CAPTURE, export.store.path, START + HOUR)
    assert handed.run == "dag/run/export/1"
    found = completed(task)
    assert names(found["inputs"]) == [("file", f"{export.store.path}/{CAPTURE}")]
    (output,) = found["outputs"]
    assert names([output]) == [("file", f"{Path(export.store.path).parent}/states/{TABLE}")]
    assert columns(output) == {"id": "int64", "name": "string", "price": "decimal128(9, 2)"}
    assert statistics(output) == {"rowCount": 7, "size": 100, "fileCount": 2}
    window = found["run_facets"]["changefeed_window"]
    assert (window["feed"], window["at"]) == (CAPTURE, "2013-01-01T01:00:00Z")


PARAMS = {"window_start": "2013-01-01T00:00:00Z", "window_end": "2013-01-01T00:40:00Z"}


@pytest.mark.parametrize(
    ("at", "run"),
    [
        ("2013-01-01T00:40:00Z", context()),
        (START + HOUR * 2 / 3, context()),
        ("2013-01-01T01:40:00+01:00", context(START, START + HOUR)),
        ("None", context(START, START + HOUR, params=PARAMS)),
    ],
    ids=["text", "time", "zone", "params, as an empty template is none"],
)
def test_a_given_time_counts_before_that_of_the_run(export: CapturedExport, at: Any, run: Any) -> None:
    """As it does for the export; then the run needs none."""
    operator(export, at=at, table=TABLE).execute(run)
    assert [(task.at, task.table) for task in FoldHook.tasks] == [(START + HOUR * 2 / 3, TABLE)]


@pytest.mark.parametrize("base", ["newest", "beginning", START, "{{ params.base }}"], ids=str)
def test_the_base_is_handed_to_the_job(export: CapturedExport, base: Any) -> None:
    """Where it is a state, it must be there."""
    task = operator(export, base=base)
    task.render_template_fields({"params": {"base": "2013-01-01T00:00:00Z"}})
    if base in ("newest", "beginning"):
        task.execute(context(START, START + HOUR))
    else:
        base = "2013-01-01T00:00:00Z"
        refused = r"has no state of that time, .* Choose another base \(none\)"
        with pytest.raises(AirflowFailException, match=refused):
            task.execute(context(START, START + HOUR))
    assert FoldHook.tasks[0].base == base


def test_what_the_job_refuses_fails_at_once(export: CapturedExport) -> None:
    """With its class and words, not with those of spark-submit."""
    for more, message in (
        ({"table": "shop.Hat"}, r"FoldError: .*does not have table 'shop\.Hat'"),
        ({"output_path": export.store.layout.data}, r"ForeignOutputError: .*lies inside"),
    ):
        with pytest.raises(AirflowFailException, match=message):
            operator(export, **more).execute(context(START, START + HOUR))


def test_what_may_pass_is_tried_again(export: CapturedExport, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window that another run still exports, a transient error, and a job that died without a word."""
    with pytest.raises(NotExportedError, match=r"nothing is complete in shard 0 \[2013"):
        operator(export).execute(context(START + HOUR, START + 2 * HOUR))
    for says, kind, message in (
        (SourceUnavailableError("away"), TransientError, "away"),
        (DiedError(), AirflowException, "Error code is: 137"),
    ):
        monkeypatch.setattr(FoldHook, "says", says)
        with pytest.raises(kind, match=message) as failed:
            operator(export).execute(context(START, START + HOUR))
        assert not isinstance(failed.value, AirflowFailException)


def test_what_cannot_run_is_refused_before_the_job(
    export: CapturedExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without a window, whose point is none; a connection that is not there."""
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT")
    for more, interval, message in (
        ({}, (), "InvalidWindowError: task 'fold' folds at the end of"),
        ({}, (START, START), "zero length"),
        ({}, (START, START + HOUR), "no connection 'spark_default'"),
        ({"path_conn_id": "nowhere"}, (START, START + HOUR), r"ConnectionNotUsableError.*'nowhere'"),
    ):
        with pytest.raises(AirflowFailException, match=message):
            operator(export, **more).execute(context(*interval))
    assert FoldHook.tasks == []


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
