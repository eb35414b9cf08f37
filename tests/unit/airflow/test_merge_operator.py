# SPDX-License-Identifier: Apache-2.0
"""The operator that merges: its time, what it refuses, and what it hands to its job and takes from it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_changefeed.connections.spark import ChangefeedSparkSubmitHook
from airflow_changefeed.core.codec import encode
from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    NotExportedError,
    SourceUnavailableError,
    error_text,
)
from airflow_changefeed.export.request import JobConnection
from airflow_changefeed.export.result import TaskResult
from airflow_changefeed.lake.current import CurrentOutput
from airflow_changefeed.lake.merge_task import MergedFiles, MergeTask
from airflow_changefeed.operators.fold import ChangefeedMergeOperator
from airflow_changefeed.version_compat import AirflowException, AirflowFailException
from tests.examples import examples, run_example
from tests.minors import ICEBERG_CATALOG
from tests.unit.airflow.fakes import context
from tests.unit.airflow.lineage import columns, completed, names, statistics, use_provider
from tests.unit.export.captures import CAPTURE, TABLE, CapturedExport, Event
from tests.unit.export.flights import START, hours

HOUR = timedelta(hours=1)
ROW = {"id": 1, "name": "boot", "price": None}


class SubmitHook(ChangefeedSparkSubmitHook):
    """Writes one row instead of starting a job, and fails as spark-submit does."""

    tasks: list[MergeTask] = []  # noqa: RUF012 - shared on purpose
    fails: Exception | str = ""

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Do what the job would."""
        assert Path(application).name == "job.py"
        assert Path(application).exists()
        command = self._build_spark_submit_command(application)
        names = ("task", "connection")
        files = {name: Path(command[command.index(f"--{name}") + 1]) for name in names}
        receipt = files["task"].with_name("result.json")
        task = MergeTask.from_json(files["task"].read_text(), named="task")
        self.tasks.append(task)
        JobConnection.from_json(files["connection"].read_text(), named="connection")
        if isinstance(self.fails, Exception):
            receipt.write_text(TaskResult(error=error_text(self.fails)).to_json())
            raise AirflowException("Cannot execute: spark-submit. Error code is: 1.")
        if self.fails:
            raise AirflowException(self.fails)
        output = CurrentOutput(task.output, task.feed, task.table)
        folder = Path(output.writing(task.attempt))
        folder.mkdir(parents=True)
        kinds = task.source(None).kinds
        row = {"id": [1], "name": ["boot"], "price": [None], "changefeed_shard": [0]}
        schema = pa.schema([*kinds.items(), ("changefeed_shard", pa.int64())])
        if task.history:
            row |= {"_valid_from": [START], "_valid_to": [None]}
            for name in ("_valid_from", "_valid_to"):
                schema = schema.append(pa.field(name, pa.timestamp("us", "UTC")))
        pq.write_table(pa.table(row, schema), folder / "part-0.parquet")
        receipt.write_text(TaskResult(encode(MergedFiles(output.written(task.attempt)))).to_json())
        return None


class InProcessMerge(ChangefeedMergeOperator):
    """The operator, with the job in its own process."""

    def _get_hook(self) -> SubmitHook:
        return SubmitHook.of(super()._get_hook())


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CapturedExport:
    """An export of two hours, the second without events, and the connection to Spark."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setattr(SubmitHook, "tasks", [])
    monkeypatch.setattr(SubmitHook, "fails", "")
    export = CapturedExport.create(tmp_path / "out")
    export.write([Event(START + HOUR / 2, "add", None, ROW)])
    export.write([], hours(1, 2)[0])
    return export


def lake(export: CapturedExport) -> str:
    """Where the table goes."""
    return str(Path(export.store.path).parent / "lake")


def size_of(folder: str) -> int:
    """Return the bytes of the Parquet files in a folder."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*.parquet"))


def operator(export: CapturedExport, **more: Any) -> InProcessMerge:
    """The operator as a DAG has it."""
    given = {"feed": CAPTURE, "path": export.store.path, "output_path": lake(export)}
    return InProcessMerge(**{"task_id": "merge", **given, **more})


def test_the_table_is_brought_to_the_end_of_the_runs_window(export: CapturedExport) -> None:
    """The task commits what its job has written; the result says what the table is then."""
    result = operator(export).execute(context(START, START + HOUR))
    assert json.loads(json.dumps(result)) == result
    (task,) = SubmitHook.tasks
    assert (task.at, task.table, task.current, task.run) == (START + HOUR, TABLE, None, "dag/run/export/1")
    assert result == {
        "feed": CAPTURE,
        "table": TABLE,
        "at": "2013-01-01T01:00:00Z",
        "attempt": task.attempt,
        "path": f"{lake(export)}/{TABLE}",
        "table_format": "delta",
        "catalog_table": "",
        "rows": 1,
        "written": 1,
        "written_bytes": size_of(lake(export)),
        "added": 1,
        "removed": 0,
        "changed": True,
    }
    assert DeltaTable(result["path"]).to_pyarrow_table().to_pylist() == [{**ROW, "changefeed_shard": 0}]
    again = operator(export).execute(context(START, START + HOUR))
    assert again == {**result, "written": 0, "written_bytes": 0, "added": 0, "changed": False}
    later = operator(export).execute(context(START + HOUR, START + 2 * HOUR))
    assert (later["changed"], later["at"], later["rows"]) == (True, "2013-01-01T02:00:00Z", 1)
    older = operator(export).execute(context(START, START + HOUR))
    assert (older["changed"], older["at"]) == (False, "2013-01-01T02:00:00Z")
    assert len(SubmitHook.tasks) == 1
    with pytest.raises(AirflowFailException, match=r"TableError: .*a merge only goes forward"):
        operator(export, at="2013-01-01T01:00:00Z").execute(context())


def test_a_merge_reports_the_table_and_what_it_has_written(
    export: CapturedExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the columns of the table itself; one that finds its work done has written nothing."""
    use_provider(monkeypatch)
    task, again = operator(export, history=True), operator(export, history=True)
    result = task.execute(context(START, START + HOUR))
    found = completed(task)
    assert names(found["inputs"]) == [("file", f"{export.store.path}/{CAPTURE}")]
    (output,) = found["outputs"]
    assert names([output]) == [("file", f"{lake(export)}/{TABLE}")]
    assert statistics(output) == {"rowCount": 1, "size": size_of(lake(export)), "fileCount": 1}
    there = DeltaTable(result["path"]).to_pyarrow_table().schema
    assert columns(output) == {each.name: str(each.type) for each in there}
    window = found["run_facets"]["changefeed_window"]
    assert (window["feed"], window["at"]) == (CAPTURE, "2013-01-01T01:00:00Z")
    again.execute(context(START, START + HOUR))
    (output,) = completed(again)["outputs"]
    assert columns(output) == {each.name: str(each.type) for each in there}
    assert statistics(output) == {"rowCount": 0, "size": 0, "fileCount": 0}


@ICEBERG_CATALOG
def test_an_iceberg_table_is_found_through_its_connection(
    export: CapturedExport, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The catalog's properties are those of the connection."""
    extra = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    monkeypatch.setenv("AIRFLOW_CONN_CATALOG", json.dumps({"conn_type": "generic", "extra": extra}))
    given = {"table_format": "iceberg", "catalog_table": "shop.shoe", "catalog_conn_id": "catalog"}
    result = operator(export, **given).execute(context(START, START + HOUR))
    from pyiceberg.catalog import load_catalog

    rows = load_catalog("catalog", **extra).load_table("shop.shoe").scan().to_arrow().to_pylist()
    assert rows == [{**ROW, "changefeed_shard": 0}]
    assert (result["catalog_table"], result["table_format"]) == ("shop.shoe", "iceberg")
    with pytest.raises(AirflowFailException, match=r"no connection 'nowhere'"):
        operator(export, **{**given, "catalog_conn_id": "nowhere"}).execute(context(START, START + HOUR))


def test_a_job_that_fails_leaves_no_table(export: CapturedExport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is the task's; one that dies is tried again."""
    monkeypatch.setattr(SubmitHook, "fails", SourceUnavailableError("away"))
    with pytest.raises(SourceUnavailableError, match="away"):
        operator(export).execute(context(START, START + HOUR))
    monkeypatch.setattr(SubmitHook, "fails", "Error code is: 137")
    with pytest.raises(AirflowException, match="Error code is: 137") as failed:
        operator(export).execute(context(START, START + HOUR))
    assert not isinstance(failed.value, AirflowFailException)
    assert not Path(lake(export), TABLE).exists()
    with pytest.raises(NotExportedError):
        operator(export).execute(context(START + 2 * HOUR, START + 3 * HOUR))


def test_a_run_without_a_window_needs_a_time(export: CapturedExport) -> None:
    """Refused with what to do."""
    with pytest.raises(
        AirflowFailException, match="InvalidWindowError: task 'merge' merges until the end of"
    ):
        operator(export).execute(context())
    result = operator(export, at="2013-01-01T00:40:00Z").execute(context())
    assert result["at"] == "2013-01-01T00:40:00Z"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"feed": ""}, "feed is missing"),
        ({"path": None}, "path is missing"),
        ({"output_path": " "}, "output_path is missing"),
        ({"table": ""}, "table is missing"),
        ({"states_path": ""}, "states_path is missing"),
        ({"table_format": "parquet"}, "for plain Parquet use ChangefeedFoldOperator"),
        ({"table_format": "iceberg"}, "catalog_table must name the table of iceberg"),
        ({"table_format": "iceberg", "catalog_table": "shop..shoe"}, "must name the table of iceberg"),
        ({"catalog_table": "a.b"}, "catalog_table is for table_format='iceberg'"),
        ({"at": "yesterday"}, "at: 'yesterday' is not a time"),
        ({"base": "oldest"}, "base must be"),
        ({"deleted": "flag"}, "deleted must be remove or keep"),
        ({"history": "yes"}, "history must be True or False, not 'yes'"),
        ({"history": True, "deleted": "keep"}, "history=True cannot be combined with deleted='keep'"),
        ({"keep_for": "long"}, "keep_for must be a length of time, 3600 seconds or more"),
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
    assert set(arguments) - {"application"} <= set(vars(operator(export)))


def test_what_a_dag_may_know_late_is_templated() -> None:
    """And what the provider's operator has templated, but for the job itself."""
    fields = set(ChangefeedMergeOperator.template_fields)
    assert {"feed", "path", "output_path", "table", "at", "base", "states_path", "conf"} <= fields
    assert "application" not in fields


def test_the_page_keeps_a_current_table(export: CapturedExport) -> None:
    """As docs/how-to/keep-a-current-table.md shows it: its DAG, and what reads the table."""
    names: dict[str, Any] = {}
    given = {"/data/current": lake(export), "/data/export": export.store.path}
    given["/data/versions"] = lake(export)
    dag, plain, iceberg, kept, versions, at_noon = examples("how-to/keep-a-current-table.md", given)[:6]
    run_example(dag, names)
    task = names["dag"].get_task("current")
    assert isinstance(task, ChangefeedMergeOperator)
    assert (task.upstream_task_ids, task.output_path, task.name) == (
        {"export"},
        lake(export),
        "changefeed-merge",
    )
    run_example(iceberg, names)
    operator(export).execute(context(START, START + HOUR))
    run_example(plain, names)
    assert names["shoes"].to_dicts() == [ROW]
    table = DeltaTable(f"{lake(export)}/{TABLE}").to_pyarrow_table()
    marked = table.append_column("_deleted_at", pa.array([START], pa.timestamp("us", "UTC")))
    write_deltalake(f"{lake(export)}/{TABLE}", marked, mode="overwrite", schema_mode="overwrite")
    run_example(kept, names)
    assert names["shoes"].collect().height == 0
    run_example(versions, names)
    times = [(None, None), (None, 12), (11, 13), (12, 12), (12, None), (13, None)]
    rows = [
        {**ROW, "id": number, "_valid_from": _hour(begun), "_valid_to": _hour(ended)}
        for number, (begun, ended) in enumerate(times)
    ]
    instant = pa.timestamp("us", "UTC")
    kinds = pa.schema([*table.schema.remove(3), ("_valid_from", instant), ("_valid_to", instant)])
    all_of_it = pa.Table.from_pylist(rows, kinds)
    write_deltalake(f"{lake(export)}/{TABLE}", all_of_it, mode="overwrite", schema_mode="overwrite")
    run_example(at_noon, names)
    assert sorted(names["shoes"].collect()["id"]) == [0, 2, 4]


def _hour(number: int | None) -> datetime | None:
    return None if number is None else START + number * HOUR


def test_history_is_handed_to_the_job(export: CapturedExport) -> None:
    """Where a DAG asks for it."""
    result = operator(export, history=True).execute(context(START, START + HOUR))
    (task,) = SubmitHook.tasks
    assert (task.history, task.deleted) == (True, "remove")
    (row,) = DeltaTable(result["path"]).to_pyarrow_table().to_pylist()
    assert row == {**ROW, "changefeed_shard": 0, "_valid_from": START, "_valid_to": None}
    with pytest.raises(
        AirflowFailException, match=r"TableError: .*made with history=True, not deleted='remove'"
    ):
        operator(export).execute(context(START, START + HOUR))
