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

from airflow_changefeed.exceptions import (
    NotExportedError,
    SourceUnavailableError,
)
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.current import CurrentOutput
from airflow_changefeed.lake.merge_task import MergedFiles, MergeTask
from airflow_changefeed.operators.fold import ChangefeedMergeOperator
from airflow_changefeed.version_compat import AirflowException, AirflowFailException
from tests.examples import examples, run_example
from tests.minors import ICEBERG_CATALOG
from tests.unit.airflow.fakes import DiedError, JobHook, context, in_process
from tests.unit.airflow.lineage import columns, completed, names, statistics, use_provider
from tests.unit.export.captures import CAPTURE, TABLE, CapturedExport, Event
from tests.unit.export.flights import START, hours

HOUR = timedelta(hours=1)
ROW = {"id": 1, "name": "boot", "price": None}


class MergeHook(JobHook):
    """Writes one row instead of starting a job."""

    document = MergeTask

    def run(self, task: MergeTask, connection: JobConnection) -> MergedFiles:
        """Do what the job would."""
        output = CurrentOutput(task.output, task.feed, task.table)
        folder = Path(output.writing(task.attempt))
        folder.mkdir(parents=True)
        row = {"id": [1], "name": ["boot"], "price": [None], "changefeed_shard": [0]}
        schema = pa.schema([*task.source(None).kinds.items(), ("changefeed_shard", pa.int64())])
        if task.history:
            row |= {"_valid_from": [START], "_valid_to": [None]}
            for name in ("_valid_from", "_valid_to"):
                schema = schema.append(pa.field(name, pa.timestamp("us", "UTC")))
        pq.write_table(pa.table(row, schema), folder / "part-0.parquet")
        return MergedFiles(output.written(task.attempt))


@pytest.fixture
def export(tmp_path: Path, jobs: type[JobHook]) -> CapturedExport:
    """An export of two hours, the second without events."""
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


def operator(export: CapturedExport, **more: Any) -> Any:
    """The operator as a DAG has it."""
    given = {"feed": CAPTURE, "path": export.store.path, "output_path": lake(export)}
    return in_process(ChangefeedMergeOperator, MergeHook)(**{"task_id": "merge", **given, **more})


def test_the_table_is_brought_to_the_end_of_the_runs_window(export: CapturedExport) -> None:
    """The task commits what its job has written; the result says what the table is then."""
    result = operator(export).execute(context(START, START + HOUR))
    assert json.loads(json.dumps(result)) == result
    (task,) = MergeHook.tasks
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
    assert len(MergeHook.tasks) == 1
    with pytest.raises(AirflowFailException, match=r"TableError: .*a merge only goes forward"):
        operator(export, at="2013-01-01T01:00:00Z").execute(context())


def test_a_history_is_merged_where_a_dag_asks_for_it_and_reported(
    export: CapturedExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the columns of the table itself; a merge that finds its work done has written nothing."""
    use_provider(monkeypatch)
    task, again = operator(export, history=True), operator(export, history=True)
    result = task.execute(context(START, START + HOUR))
    assert [(handed.history, handed.deleted) for handed in MergeHook.tasks] == [(True, "remove")]
    table = DeltaTable(result["path"]).to_pyarrow_table()
    (row,) = table.to_pylist()
    assert row == {**ROW, "changefeed_shard": 0, "_valid_from": START, "_valid_to": None}
    found = completed(task)
    assert names(found["inputs"]) == [("file", f"{export.store.path}/{CAPTURE}")]
    (output,) = found["outputs"]
    assert names([output]) == [("file", f"{lake(export)}/{TABLE}")]
    assert statistics(output) == {"rowCount": 1, "size": size_of(lake(export)), "fileCount": 1}
    assert columns(output) == {each.name: str(each.type) for each in table.schema}
    window = found["run_facets"]["changefeed_window"]
    assert (window["feed"], window["at"]) == (CAPTURE, "2013-01-01T01:00:00Z")
    again.execute(context(START, START + HOUR))
    (output,) = completed(again)["outputs"]
    assert columns(output) == {each.name: str(each.type) for each in table.schema}
    assert statistics(output) == {"rowCount": 0, "size": 0, "fileCount": 0}
    with pytest.raises(
        AirflowFailException, match=r"TableError: .*made with history=True, not deleted='remove'"
    ):
        operator(export).execute(context(START, START + HOUR))


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
    """Its error is the task's; one that dies is tried again. A run without a window needs a time."""
    for says, kind, message in (
        (SourceUnavailableError("away"), SourceUnavailableError, "away"),
        (DiedError(), AirflowException, "Error code is: 137"),
    ):
        monkeypatch.setattr(MergeHook, "says", says)
        with pytest.raises(kind, match=message) as failed:
            operator(export).execute(context(START, START + HOUR))
        assert not isinstance(failed.value, AirflowFailException)
    with pytest.raises(NotExportedError):
        operator(export).execute(context(START + 2 * HOUR, START + 3 * HOUR))
    with pytest.raises(
        AirflowFailException, match="InvalidWindowError: task 'merge' merges until the end of"
    ):
        operator(export).execute(context())
    assert not Path(lake(export), TABLE).exists()
    monkeypatch.setattr(MergeHook, "says", None)
    result = operator(export, at="2013-01-01T00:40:00Z").execute(context())
    assert result["at"] == "2013-01-01T00:40:00Z"


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
