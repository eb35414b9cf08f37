# SPDX-License-Identifier: Apache-2.0
"""Grouping, progress, archive and watch of the Spark job; none of them needs Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from datetime import datetime, timezone
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_changefeed.core.export_plan import ExportOptions, FileFacts, Plan, PlannedUnit
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.window import ExportUnit
from airflow_changefeed.exceptions import ColumnTypeError, TerminalError
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.export.parts import cut_tasks, run_attempt
from airflow_changefeed.export.result import ProgressWatch, TaskProgress, TaskResult, size_text
from airflow_changefeed.output.attempts import forget
from airflow_changefeed.output.commit import commit_empty
from airflow_changefeed.output.store import ExportStore, StagedFile, WrittenParts
from airflow_changefeed.spark.archive import package_archive
from airflow_changefeed.spark.job import EXIT_STATUS, TASKS, do_task, is_alive, main, read_task, watch
from airflow_changefeed.spark.read import spark_type
from airflow_changefeed.storage.local import LocalFiles
from tests.exports import verify
from tests.identity import DATABASE
from tests.unit.export.flights import FEED, hours


def plan_of(rows: list[int], path: str = "/out") -> Plan:
    """A plan of one shard with a unit of so many rows for each hour."""
    units = []
    for window, count in zip(hours(0, len(rows)), rows, strict=True):
        unit = ExportUnit.of_window(1, window)
        units.append(PlannedUnit(unit, count, (unit.range,) if count else ()))
    return Plan(FEED, path, "c", 7, "run", datetime(2026, 1, 1, tzinfo=timezone.utc), tuple(units), {})


def units_of(rows: list[int]) -> list[list[int]]:
    """Numbers of the units of each task of a plan."""
    return [[part.unit for part in task] for task in cut_tasks(plan_of(rows))]


def test_many_small_units_are_few_tasks() -> None:
    """216 units of 70 rows are tasks of at most a twenty-fifth, balanced, in order, and none is forgotten."""
    tasks = units_of([70] * 216)
    assert len(tasks) == 24
    assert [unit for task in tasks for unit in task] == list(range(216))
    assert max(map(len, tasks)) == 9
    assert units_of([70] * 24) == [[unit] for unit in range(24)], "any number of cores is busy"


def test_a_task_has_two_million_rows_at_most_and_a_hundred_cores_are_busy() -> None:
    """A hundred million rows are a hundred tasks, whatever the machines are when the job begins."""
    parts = [500_000] * 200
    tasks = units_of(parts)
    assert len(tasks) >= 100
    assert max(sum(parts[unit] for unit in task) for task in tasks) <= 2_000_000
    assert len(units_of([500_000] * 4)) == 4


def test_as_many_tasks_as_partitions_were_asked_for() -> None:
    """Where there are so many parts that are worth a task."""
    plan = replace(plan_of([50_000] * 40), options=ExportOptions(partitions=40))
    assert len(cut_tasks(plan)) == 40
    assert len(units_of([50_000] * 40)) < 40


def test_large_units_are_tasks_of_their_own() -> None:
    """A large unit does not carry small ones with it, and empty units are no work."""
    tasks = units_of([10, 1_000_000, 0, 10, 1_000_000, 10])
    assert [task for task in tasks if 1 in task or 4 in task] != []
    assert not any(1 in task and 4 in task for task in tasks)
    assert sorted(unit for task in tasks for unit in task) == [0, 1, 3, 4, 5]
    assert units_of([0, 0]) == []


def test_a_task_imports_neither_pandas_nor_polars(tmp_path: Path) -> None:
    """Arrow's and ADBC's conveniences import them, which would cost every worker of Spark seconds."""
    code = f"""
import json, sqlite3, sys
import pyarrow as pa
from airflow_changefeed.core.export_plan import ExportOptions
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.export.parts import cut_tasks
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.store import ExportStore, StagedFile, WrittenParts
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.spark.export_job import WriteParts, packed

database = {str(tmp_path / "feeds.db")!r}
with sqlite3.connect(database) as connection:
    connection.execute('create table "shop.Order" (id integer primary key, note text, price real)')
source = SqliteFeedSource(database)
source.set_up_feed("shop.Order")
with sqlite3.connect(database) as connection:
    connection.execute('insert into "shop.Order" values (1, ?, 1.5), (2, null, null)', ["new"])
    connection.execute('insert into "changefeed.outbox:shop.Order" (shard_id, id) values (0, 1), (0, 2)')
store = ExportStore({str(tmp_path / "out")!r}, "shop.Order")
plan = make_plan(source, store, ExportRequest("shop.Order", store.path, "reader", "run"))
source.close()
connection = JobConnection(source.describe(), {{}})
tasks = dict(enumerate(map(packed, cut_tasks(plan))))
write = WriteParts(plan.feed, plan.path, plan.attempt, ExportOptions(), connection, tasks, plan.database)
number = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer((0).to_bytes(8, "little"))])
(facts,) = write(iter([pa.RecordBatch.from_arrays([number], names=["id"])]))
told = json.loads(facts.column(0)[0].as_py())
print(json.dumps([len(told["facts"]), sorted({{"pandas", "polars"}} & set(sys.modules))]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [2, []], "the schema and a file were told"


def test_progress_adds_up_tasks_and_counts_twins_once(tmp_path: Path) -> None:
    """
    The line names rows and bytes by shard; of two attempts at one task the furthest counts, and of a task
    that has ended what it returned.
    """
    files = LocalFiles(str(tmp_path))
    lines: list[str] = []
    watched = ProgressWatch(files, plan_of([100, 50], str(tmp_path)), lines.append)
    for task, rows in (("00000-1", 30), ("00000-5", 40), ("00001-2", 50)):
        progress = TaskProgress(files, f"{watched._folder}/{task}/progress.json", seconds=0)
        progress.add("1", rows, rows * 1000)
    watched.report()
    watched.report()
    facts = FileFacts("part.parquet", 100, 70_000, Ulid.MIN, Ulid.MIN, 0)
    watched.add(0, WrittenParts([0], [StagedFile(0, "", facts)], pa.schema([])))
    watched.report()
    assert lines == [
        "changefeed progress: shard 1: 90 of 150 rows, 90 kB",
        "changefeed progress: shard 1: 150 of 150 rows, 120 kB",
    ]
    assert size_text(1_500_000) == "2 MB"


def test_the_archive_is_made_once_and_holds_what_executors_need(tmp_path: Path) -> None:
    """The same content gives the same file, byte for byte, and a bare Python imports the package from it."""
    path = Path(package_archive(str(tmp_path / "a")))
    other = Path(package_archive(str(tmp_path / "b")))
    assert path.name == other.name
    assert path.read_bytes() == other.read_bytes()
    made = path.stat().st_mtime_ns
    assert package_archive(str(tmp_path / "a")) == str(path)
    assert path.stat().st_mtime_ns == made
    names = zipfile.ZipFile(path).namelist()
    assert "airflow_changefeed/spark/executors.py" in names
    assert any(name.endswith(".sql") for name in names)
    # What docs/how-to/run-on-a-cluster.md has installed, and nothing else.
    (installed := tmp_path / "installed").mkdir()
    for name in ("pyarrow", "numpy", "fsspec"):
        folder = Path(str(find_spec(name).origin)).parent
        for place in (folder, folder.with_name(f"{name}.libs")):
            if place.exists():
                (installed / place.name).symlink_to(place)
    code = f"""
import sys
sys.path[:] = [{str(path)!r}, *(p for p in sys.path if "site-packages" not in p), {str(installed)!r}]
import airflow_changefeed.sources.mssql.source, airflow_changefeed.spark.executors as tasks
import airflow_changefeed.spark.export_job, airflow_changefeed.spark.snapshot_job
from airflow_changefeed.sources.mssql.connection.pool import RetryPolicy
import ulid
print(tasks.__file__, ulid.__file__, RetryPolicy().call(lambda: sys.modules["tenacity"].__file__))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.count(str(path)) == 3, done.stderr


def test_the_job_ends_with_whoever_started_it() -> None:
    """When a watched process is gone, the job says so and ends; as long as all live, it goes on."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ended = threading.Event()
    lines: list[str] = []
    status: list[int] = []

    def end(code: int) -> None:
        status.append(code)
        ended.set()

    watch([child.pid, os.getpid()], lines.append, end)
    assert is_alive(child.pid)
    child.communicate(b"\n", timeout=30)
    assert not is_alive(child.pid)
    assert ended.wait(30)
    assert status == [EXIT_STATUS]
    assert str(child.pid) in lines[0]


def test_arrow_types_have_names_in_spark() -> None:
    """Exported types are those of Spark, and one that Spark does not have is refused by its column."""
    assert spark_type("c", pa.timestamp("ms", "UTC")) == "timestamp"
    assert spark_type("c", pa.timestamp("us")) == "timestamp_ntz"
    assert spark_type("c", pa.decimal128(19, 4)) == "decimal(19,4)"
    assert spark_type("c", pa.binary(16)) == "binary"
    with pytest.raises(ColumnTypeError, match="'c'"):
        spark_type("c", pa.month_day_nano_interval())


def test_a_plan_without_rows_needs_no_spark(tmp_path: Path) -> None:
    """Empty units are committed, and nothing is asked to write."""
    plan = plan_of([0, 0, 0], str(tmp_path))

    def never() -> Any:
        raise LookupError("Spark was asked for")

    store = ExportStore(plan.path, FEED)
    store.claim(DATABASE)
    result = run_attempt(store, plan, never)
    assert (result.units, result.rows) == (3, 0)
    assert [manifest.attempt for manifest in store.list()] == [7, 7, 7]
    forget(store, [plan.attempt])
    later = replace(plan, attempt=8)
    assert [manifest.attempt for manifest in commit_empty(store, later)] == [8, 8, 8]
    assert verify(store) == []


def test_the_last_words_of_a_job_name_the_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that cannot begin ends with status 1 and a line with the class of the error and what is wrong."""
    (tmp_path / "connection.json").write_text("{}")
    arguments = ["--spec", "nowhere", "--connection", str(tmp_path / "connection.json")]
    assert main(arguments) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("airflow_changefeed.exceptions.TerminalError: ")
    assert "is not a changefeed connection" in last
    assert not (tmp_path / "connection.json").exists(), "it holds secrets"


@pytest.mark.parametrize("kind", TASKS)
def test_each_kind_of_task_has_its_module(kind: str) -> None:
    """By the table of the launcher: the function, and the class whose documents have that kind."""
    module, function, task = TASKS[kind]
    found = import_module(f"airflow_changefeed.spark.{module}")
    assert callable(getattr(found, function))
    assert kind == getattr(found, task).KIND


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"kind": ["os"]}'])
def test_a_damaged_task_is_refused(tmp_path: Path, text: str) -> None:
    """For good; and the error is said even where no receipt can be written."""
    task, connection = tmp_path / "task.json", tmp_path / "connection.json"
    task.write_text(text)
    with pytest.raises(TerminalError):
        read_task(str(task))
    JobConnection({}).save(str(connection))
    (tmp_path / "result.json").mkdir()
    with pytest.raises(TerminalError):
        do_task(str(task), str(connection))


@pytest.mark.parametrize("kind", ["changefeed plan", "os", "airflow_changefeed.spark.snapshot_job"])
def test_a_task_of_no_known_kind_is_refused(tmp_path: Path, kind: str) -> None:
    """Nothing is imported that a document names; the receipt says why."""
    task, connection = tmp_path / "task.json", tmp_path / "connection.json"
    task.write_text(json.dumps({"kind": kind}))
    JobConnection({}).save(str(connection))
    assert main(["--task", str(task), "--connection", str(connection)]) == 1
    receipt = TaskResult.from_json((tmp_path / "result.json").read_text(), named="receipt")
    assert f"is a {kind}, which is not a task of a Spark job" in (receipt.error or "")
    assert not connection.exists()
