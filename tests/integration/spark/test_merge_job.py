# SPDX-License-Identifier: Apache-2.0
"""The job that writes the files of a current table, on any Spark, without a library of a table's format."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.codec import decode
from airflow_changefeed.exceptions import FoldError
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.formats.base import PlainFile, TableChange, TableState
from airflow_changefeed.lake.current import CurrentOutput
from airflow_changefeed.lake.merge_task import MergedFiles
from airflow_changefeed.spark import merge as spark_merge
from tests.integration.spark.jobs import run_job
from tests.integration.spark.merging import Merging
from tests.integration.spark.shoes import History
from tests.unit.export.captures import HOUR, Event, fold_in_python, minute, shoe
from tests.unit.export.flights import START
from tests.unit.formats.current import ids

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class Listed:
    """A table that is a list of files in memory."""

    what = "the table"

    def __init__(self, output: CurrentOutput) -> None:
        self.output = output
        self.state = TableState()

    def check(self, schema: pa.Schema, have: pa.Schema | None = None) -> None:
        """Take all columns."""

    def look(self) -> TableState:
        """Return the table."""
        return self.state

    def commit(self, seen: TableState, change: TableChange) -> None:
        """Replace files."""
        assert seen is self.state
        added = [file for file in change.add if isinstance(file, PlainFile)]
        kept = [file for file in seen.plain if file.path not in change.remove]
        version = (seen.version or 0) + 1
        self.state = TableState(version, change.schema, plain=(*kept, *added), marks=change.marks)

    def unused(self, older_than: timedelta) -> list[str]:
        """Remove nothing."""
        return []

    def rows(self) -> list[dict[str, Any]]:
        """Read the files."""
        folder = Path(self.output.layout.data)
        tables = (pq.ParquetFile(folder / file.path).read() for file in self.state.plain)
        found = [row for table in tables for row in table.to_pylist()]
        return sorted(found, key=lambda row: (row["id"], repr(row)))


class Job:
    """Merges into one such table."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.merging = Merging(spark, folder, "delta")
        self.table = Listed(self.merging.output)

    def merge(self, at: datetime, **more: Any) -> list[dict[str, Any]]:
        """Merge until a time, and return the rows then."""
        self.merging.merge(at, lambda output: self.table, **more)
        return self.table.rows()


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    """An empty table."""
    return Job(spark, tmp_path)


@pytest.mark.ci
@pytest.mark.parametrize("deleted", ["keep", pytest.param("remove", marks=pytest.mark.nightly)])
def test_the_files_have_the_rows_of_the_table(
    job: Job, deleted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a random history in three shards, from one time to the next."""
    monkeypatch.setattr(spark_merge, "parts", lambda files: 3)
    history = History(3)
    for hour in range(2):
        history.run(hour, 60)
        history.export(job.merging.export, hour)
    for number in (40, 60, 61, 64, 120):
        rows = job.merge(minute(number), deleted=deleted)
        there = [row for row in rows if row.pop("_deleted_at", None) is None]
        assert all(row.pop("changefeed_shard") == row["id"] % 3 for row in there)
        assert there == sorted(fold_in_python(history.events, minute(number)), key=lambda row: row["id"])
        gone = {row["id"] for row in rows} - set(ids(there))
        ever = {
            (event.new or event.old or {})["id"] for _, event in history.events if event.at < minute(number)
        }
        assert gone == (ever - set(ids(there)) if deleted == "keep" else set())


@pytest.mark.ci
def test_the_job_says_how_it_ended(job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To the operator by a file, to people by its last line; what it wrote in vain is gone."""
    job.merge(job.merging.window(0, Event(minute(1), "add", None, shoe(1))))
    end = job.merging.window(1, Event(minute(61), "upd", shoe(1), shoe(1, "clog")))
    with pytest.raises(FoldError, match="changes a row that no earlier event has inserted"):
        job.merge(job.merging.window(2, Event(minute(121), "upd", shoe(9), shoe(9, "clog"))))
    (task, failing) = job.merging.tasks[0], job.merging.tasks[1]
    assert failing.at == end + HOUR
    again = (replace(each, attempt=each.attempt + 1) for each in (task, failing))
    (good, written), (bad, refused) = (
        run_job(tmp_path / str(each.attempt), each.to_json(), JobConnection({})) for each in again
    )
    assert (good, written.error) == (0, None)
    assert [file.rows for file in decode(MergedFiles, written.facts, named="result").add] == [1]
    assert bad == 1
    with pytest.raises(FoldError, match="changes a row"):
        refused.raise_error()
    assert "changes a row" in capsys.readouterr().out
    assert not Path(job.merging.output.writing(failing.attempt + 1)).exists()
    assert job.table.state.marks["changefeed.frontier"] == (START + HOUR).timestamp() * 1000
