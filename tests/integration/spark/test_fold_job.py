# SPDX-License-Identifier: Apache-2.0
"""The job that folds: what it writes, what a retry makes of it, and what a failure leaves."""

from __future__ import annotations

from datetime import date, datetime, time, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.core.codec import decode
from airflow_changefeed.exceptions import FoldError, NotExportedError, own_error
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.fold_plan import FoldTask
from airflow_changefeed.lake.states import State, StateStore, new_attempt
from airflow_changefeed.spark import fold
from airflow_changefeed.spark.version_compat import HAS_TIME_TYPE
from tests.integration.spark.jobs import run_job
from tests.unit.export.captures import CAPTURE, HOUR, TABLE, CapturedExport, Event, reshaped, shape, shoe
from tests.unit.export.flights import START, hours

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


@pytest.fixture
def export(tmp_path: Path) -> CapturedExport:
    """Two hours: two rows, and then none."""
    export = CapturedExport.create(tmp_path / "out")
    export.write([Event(START + HOUR / 2, "add", None, shoe(number), number=number) for number in (1, 2)])
    gone = [Event(START + 1.5 * HOUR, "del", shoe(number), number=number) for number in (1, 2)]
    export.write(gone, hours(1, 2)[0])
    return export


def task_of(export: CapturedExport, hour: int) -> FoldTask:
    """What the operator would hand over."""
    output = str(Path(export.store.path).parent / "states")
    return FoldTask(CAPTURE, export.store.path, output, START + hour * HOUR, None, new_attempt(), "tests/run")


def run(spark: SparkSession, export: CapturedExport, hour: int) -> State:
    """Run the job at the end of an hour."""
    return fold.run_fold(lambda: spark, task_of(export, hour), JobConnection({}), lambda line: None)


def left(export: CapturedExport) -> list[str]:
    """What lies in the output besides states and claims."""
    home = Path(export.store.path).parent / "states" / "_changefeed"
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.name != "feed.json")


def test_a_state_is_plain_parquet(spark: SparkSession, export: CapturedExport) -> None:
    """
    With the table's columns and the rows' shards, in its own folder; a time has one state, however often it
    is folded.
    """
    states = [run(spark, export, 1) for _ in range(2)]
    assert [state.rows for state in states] == [2, 2]
    path = Path(states[1].path)
    rows = [row for file in states[1].files for row in pq.ParquetFile(path / file).read().to_pylist()]
    assert sorted(rows, key=lambda row: int(row["id"])) == [
        {**shoe(number), "changefeed_shard": 0} for number in (1, 2)
    ]
    assert not Path(states[0].path).exists()
    assert path.parent.name == "changefeed_at=20130101T010000Z"
    assert spark.read.parquet(str(path.parent.parent)).count() == 2
    assert left(export) == [TABLE]


@pytest.mark.ci
def test_an_empty_table_can_be_read(spark: SparkSession, export: CapturedExport) -> None:
    """It has a file with columns and without rows."""
    state = run(spark, export, 2)
    assert (state.rows, len(state.files) > 0) == (0, True)
    frame = spark.read.parquet(state.path)
    assert frame.columns == ["id", "name", "price", "changefeed_shard"]
    assert frame.count() == 0
    assert StateStore(str(Path(state.path).parents[2]), CAPTURE, TABLE).read(state.at) == state


def test_a_fold_that_fails_leaves_nothing(spark: SparkSession, export: CapturedExport) -> None:
    """Also where Spark was writing already: the error is ours, and the state of before stays."""
    before = run(spark, export, 2)
    export.write([Event(START + 1.7 * HOUR, "upd", shoe(9), shoe(9, "clog"))], hours(1, 2)[0])
    for _ in range(2):
        with pytest.raises(FoldError, match="changes a row that no earlier event has inserted"):
            run(spark, export, 2)
    assert spark.read.parquet(before.path).count() == 0
    assert left(export) == [TABLE]


@pytest.mark.ci
def test_all_types_arrive_as_they_are(spark: SparkSession, export: CapturedExport) -> None:
    """Times that Spark's own defaults would spoil; the session's settings are as before."""
    kinds = {
        "id": pa.int64(),
        "clock": pa.time64("us"),
        "instant": pa.timestamp("us", tz="UTC"),
        "old": pa.timestamp("us", tz="UTC"),
        "day": pa.date32(),
        "local": pa.timestamp("us"),
        "raw": pa.binary(),
    }
    row = {
        "id": 1,
        "clock": time(23, 59, 59, 999_999),
        "instant": datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone.utc),
        "old": datetime(1, 1, 2, tzinfo=timezone.utc),
        "day": date(1, 1, 1),
        "local": datetime(1, 1, 1, 0, 0, 0, 1),
        "raw": b"\x00\xff",
    }
    if not HAS_TIME_TYPE:
        del kinds["clock"], row["clock"]
    same = {name: name for name in kinds}
    export.image = pa.schema(kinds)
    export.shape = reshaped(shape(), columns=dict.fromkeys(Operation, same))
    for hour in (0, 1):
        events = [Event(START + HOUR / 2, "add", None, row)] if hour == 0 else []
        export.write(events, hours(hour, hour + 1)[0])
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    state = run(spark, export, 1)
    (file,) = [pq.ParquetFile(Path(state.path) / name) for name in state.files if name]
    assert file.read().to_pylist() == [{**row, "changefeed_shard": 0}]
    assert file.schema_arrow.field("local").type == pa.timestamp("us")
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == before


def test_the_job_says_how_it_ended(
    spark: SparkSession, export: CapturedExport, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To the operator by a file, to people by its last line; the connection's file is gone."""
    assert spark.version
    (done, good), (failed, bad) = (
        run_job(tmp_path / str(hour), task_of(export, hour).to_json(), JobConnection({})) for hour in (1, 3)
    )
    assert (done, failed) == (0, 1)
    assert good.error is None
    assert decode(State, good.facts, named="result").rows == 2
    assert bad.error is not None
    assert isinstance(own_error(bad.error), NotExportedError)
    shown = capsys.readouterr().out
    assert "changefeed done: 2 rows" in shown
    assert "exceptions.NotExportedError: feed" in shown
