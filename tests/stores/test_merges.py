# SPDX-License-Identifier: Apache-2.0
"""Current tables in an object store: their commits, documents and left-overs, with files written by hand."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_changefeed.exceptions import TableConflictError
from airflow_changefeed.formats.base import CURRENT, LakeTable
from airflow_changefeed.formats.publish import open_table
from airflow_changefeed.lake.current import CurrentOutput
from airflow_changefeed.lake.merge import merge
from airflow_changefeed.lake.merge_task import MergedFiles, MergeRequest, MergeResult, MergeTask
from tests.stores.servers import Server
from tests.unit.export.captures import CAPTURE, TABLE, CapturedExport, Event
from tests.unit.export.flights import START, hours
from tests.unit.formats.current import Between


def row(number: int) -> dict[str, Any]:
    """A row of the captured table."""
    return {"id": number, "name": "boot", "price": None}


class Bucket:
    """An export on this disk, and a current table of it in a store."""

    def __init__(self, format: str, server: Server, folder: Path) -> None:
        self.format = format
        self.folder = folder
        self.options = dict(server.direct)
        self.path = f"{server.root}/{uuid.uuid4().hex}"
        self.export = CapturedExport.create(folder / "out")

    @property
    def output(self) -> CurrentOutput:
        """Where the table lies."""
        return CurrentOutput(self.path, CAPTURE, TABLE, self.options)

    def open(self, output: CurrentOutput) -> LakeTable:
        """Open the table."""
        if self.format == "delta":
            return open_table("delta", output, self.options, use=CURRENT)
        catalog = {"name": "tests", "type": "sql", "uri": f"sqlite:///{self.folder}/catalog.db"}
        return open_table("iceberg", output, self.options, table="shop.shoe", catalog=catalog, use=CURRENT)

    def write(self, task: MergeTask) -> MergedFiles:
        """Write the table's rows at a time into one file, in place of all others."""
        source = task.source(self.options)
        rows = {number: row(number) for number in range(1, 1 + (task.at - START).seconds // 3600)}
        kinds = [*source.kinds.items(), ("changefeed_shard", pa.int64())]
        table = pa.Table.from_pylist(
            [{**each, "changefeed_shard": 0} for each in rows.values()], pa.schema(kinds)
        )
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        content, files = sink.getvalue().to_pybytes(), self.output.files
        path = f"{self.output.writing(task.attempt)}/part-0.parquet"
        with files.writer(path) as file:
            file.write(content)
        assert files.complete(path, file.receipt, len(content))
        return MergedFiles(self.output.written(task.attempt), tuple(each.path for each in task.files))

    def merge(self, hour: int, open_lake: Any = None) -> MergeResult:
        """Merge until the end of an hour."""
        request = MergeRequest(
            CAPTURE,
            self.export.store.path,
            self.path,
            hours(hour - 1, hour)[0].end,
            "tests/run",
            table_format=self.format,
            catalog_table="shop.shoe" if self.format == "iceberg" else "",
            is_window=True,
        )
        return merge(request, self.options, open_lake or self.open, self.write, lambda line: None)

    def ids(self) -> list[int]:
        """Read the files that the table has."""
        found: list[int] = []
        for each in self.open(self.output).look().plain:
            with self.output.files.reader(f"{self.output.layout.data}/{each.path}") as file:
                found += pq.ParquetFile(file).read()["id"].to_pylist()
        return sorted(found)


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_current_table_in_a_store(format: str, s3_server: Server, tmp_path: Path) -> None:
    """One commit for each window, though an answer is lost and another one commits first."""
    bucket = Bucket(format, s3_server, tmp_path)
    for hour in range(3):
        window = hours(hour, hour + 1)[0]
        bucket.export.write([Event(window.start, "add", None, row(hour + 1))], window)
    assert bucket.merge(1).changed
    assert bucket.ids() == [1]

    def lost() -> None:
        raise TableConflictError("the commit got no answer", table="t")

    assert bucket.merge(2, lambda output: Between(bucket.open(output), after=lost)).changed
    assert bucket.ids() == [1, 2]

    def other() -> None:
        assert bucket.merge(3).changed

    assert not bucket.merge(3, lambda output: Between(bucket.open(output), before=other)).changed
    assert not bucket.merge(1).changed
    assert bucket.ids() == [1, 2, 3]
    output, lake = bucket.output, bucket.open(bucket.output)
    seen = lake.look()
    record = output.read(seen.marks)
    assert record is not None
    assert (record.at, record.rows, record.database) == (
        hours(2, 3)[0].end,
        3,
        bucket.export.store.database(),
    )
    removed = output.clean(lake.unused(timedelta(0)), datetime(2100, 1, 1, tzinfo=timezone.utc), record)
    assert len(removed) == 2
    assert bucket.ids() == [1, 2, 3]
