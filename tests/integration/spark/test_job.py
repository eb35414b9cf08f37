# SPDX-License-Identifier: Apache-2.0
"""The Spark job: a plan in, placed units and a result out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from airflow_changefeed.core.export_plan import ExportOptions, Plan
from airflow_changefeed.exceptions import MissingEventError
from airflow_changefeed.export.job_spec import JobConnection, read_receipt, remove_spec, write_spec
from airflow_changefeed.export.result import ExportResult, attempts_of
from airflow_changefeed.output.attempts import forget
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.archive import package_archive
from airflow_changefeed.spark.export_job import run_spec
from airflow_changefeed.spark.read import read_export
from tests.exports import verify
from tests.unit.export.flights import FEED, Flights, hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
#: Without the second compiler, as the hook starts it.
SUBMIT = (
    *("--master", "local[2]", "--conf", "spark.ui.enabled=false"),
    *("--driver-java-options", "-XX:TieredStopAtLevel=1"),
)


@pytest.fixture
def store(tmp_path: Path) -> ExportStore:
    """An output that nobody uses yet."""
    return ExportStore(str(tmp_path / "out"), FEED)


def quiet(line: str) -> None:
    """Say nothing."""


def run(
    spark: SparkSession,
    flights: Flights,
    store: ExportStore,
    plan: Plan,
    report: Callable[[str], None] = quiet,
) -> ExportResult:
    """Run a plan as a task does that starts a job."""
    connection = JobConnection(flights.source.describe())
    result = run_spec(lambda: spark, write_spec(store, plan), connection, report)
    assert read_receipt(store, plan.attempt) == result
    remove_spec(store, plan.attempt)
    forget(store, attempts_of(result))
    return result


def test_all_units_and_shards_of_a_run_are_exported(
    spark: SparkSession, flights: Flights, store: ExportStore
) -> None:
    """Units of two shards become a few jobs of Spark at once, and each row arrives once."""
    flights.add(300, 0, shard=1, length=3)
    flights.add(30, 0, shard=2, length=3)
    plan = flights.plan(store, hours(0, 4))
    lines: list[str] = []
    result = run(spark, flights, store, plan, lines.append)
    assert (result.status, result.rows, result.units) == ("done", 330, 8)
    assert read_export(spark, store.path, FEED).count() == 330
    assert any("shard 1: 300 of 300 rows" in line and "shard 2: 30 of 30 rows" in line for line in lines)
    assert verify(store) == []
    assert store.files.names(store.layout.attempts) == []


@pytest.mark.ci
def test_no_two_attempts_of_one_application_have_the_same_number(spark: SparkSession) -> None:
    """Also of tasks that are all tried for the first time: it names files, and a stage may run again."""

    def numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from airflow_changefeed.spark.export_job import _task_attempt

        for batch in batches:
            yield pa.RecordBatch.from_pydict(
                {"number": pa.array([_task_attempt()] * batch.num_rows, pa.int64())}
            )

    found = [
        row.number
        for _ in range(2)
        for row in spark.range(3, numPartitions=3).mapInArrow(numbers, "number long").collect()
    ]
    assert len(set(found)) == len(found) == 6


@pytest.mark.ci
def test_a_unit_is_split_into_parts_and_files(
    spark: SparkSession, flights: Flights, store: ExportStore
) -> None:
    """A large unit is read in parts, and a file ends at the rows asked for."""
    flights.add(90_000, 0)
    plan = flights.plan(store, hours(0, 1), options=ExportOptions(partitions=3, target_file_rows=20_000))
    assert len(plan.units[0].parts) == 3
    run(spark, flights, store, plan)
    (manifest,) = store.list()
    assert manifest.rows == 90_000
    assert len(manifest.files) == 6
    assert verify(store) == []


def test_an_error_of_a_task_reaches_the_operator_as_what_it_was(
    spark: SparkSession, flights: Flights, store: ExportStore
) -> None:
    """A missing event row fails the job as MissingEventError, which stands in the receipt."""
    flights.add(10, 0)
    plan = flights.plan(store, hours(0, 1))
    spec = write_spec(store, plan)
    flights.execute(f'delete from "{FEED}" where id = 3')
    with pytest.raises(MissingEventError, match="was deleted"):
        run_spec(lambda: spark, spec, JobConnection(flights.source.describe()), quiet)
    result = read_receipt(store, plan.attempt)
    assert result is not None
    with pytest.raises(MissingEventError, match="was deleted"):
        result.raise_error()
    remove_spec(store, plan.attempt)
    assert store.files.sizes(store.layout.data) == {}
    assert store.files.names(store.layout.attempts) == []


def test_a_spec_that_is_started_twice_is_written_once(
    spark: SparkSession, flights: Flights, store: ExportStore
) -> None:
    """A cluster that starts a driver again finds everything done; both starts say so."""
    flights.add(10, 0)
    plan = flights.plan(store, hours(0, 1))
    spec, connection = write_spec(store, plan), JobConnection(flights.source.describe())
    first, second = (run_spec(lambda: spark, spec, connection, quiet) for _ in range(2))
    assert first.manifests == second.manifests
    assert (first.rows, second.rows) == (10, 10)
    assert plan.attempt < first.attempt < second.attempt
    assert read_receipt(store, plan.attempt) == second
    assert read_export(spark, store.path, FEED).count() == 10


@pytest.mark.ci
def test_a_killed_job_is_made_good_by_a_retry(
    spark: SparkSession, flights: Flights, store: ExportStore, tmp_path: Path
) -> None:
    """A job that is killed while its tasks write leaves no row to see; a retry gives all of them once."""
    flights.add(50_000, 0)
    plan = flights.plan(store, hours(0, 1), options=ExportOptions(batch_rows=20))
    spec = write_spec(store, plan)
    JobConnection(flights.source.describe()).save(str(tmp_path / "connection.json"))
    arguments = ("--spec", spec, "--connection", str(tmp_path / "connection.json"))
    job = subprocess.Popen(
        [sys.executable, "-m", "airflow_changefeed.spark.job", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            "PYSPARK_SUBMIT_ARGS": f"{' '.join(SUBMIT)} pyspark-shell",
        },
        start_new_session=True,
    )
    try:
        while not any(name.endswith(".parquet") for name in store.files.sizes(store.layout.attempts)):
            # It must not end before it is killed. Asking without a pause would take the processor from it.
            with pytest.raises(subprocess.TimeoutExpired):
                job.wait(0.05)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    assert read_receipt(store, plan.attempt) is None
    assert store.files.sizes(store.layout.data) == {}
    again = flights.plan(store, hours(0, 1))
    assert again.attempt > plan.attempt
    run(spark, flights, store, again)
    assert verify(store) == []
    assert read_export(spark, store.path, FEED).distinct().count() == 50_000


@pytest.mark.ci
def test_the_job_runs_under_spark_submit_with_nothing_but_its_archive(
    flights: Flights, store: ExportStore, tmp_path: Path
) -> None:
    """spark-submit with the package as an archive, in a folder without it, exports and says so."""
    import airflow_changefeed.spark.job as job

    flights.add(25, 0)
    plan = flights.plan(store, hours(0, 2))
    spec = write_spec(store, plan)
    JobConnection(flights.source.describe()).save(str(tmp_path / "connection.json"))
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "job.py").write_bytes(Path(job.__file__).read_bytes())
    done = subprocess.run(
        [
            str(Path(sys.executable).parent / "spark-submit"),
            "--master",
            "local[2]",
            "--conf",
            "spark.ui.enabled=false",
            "--py-files",
            package_archive(),
            str(alone / "job.py"),
            "--spec",
            spec,
            "--connection",
            str(tmp_path / "connection.json"),
        ],
        cwd=alone,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].startswith("changefeed done: 25 rows")
    result = read_receipt(store, plan.attempt)
    assert result is not None
    assert [json.loads(Path(path).read_text())["rows"] for path in result.manifests] == [25, 0]
    assert verify(store) == []
