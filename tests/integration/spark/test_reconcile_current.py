# SPDX-License-Identifier: Apache-2.0
"""Comparing a current table with its captured table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from airflow_changefeed.connections.output import current_version
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    NotExportedError,
    TableError,
    TransientError,
)
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.formats.base import CURRENT as CURRENT_TABLE
from airflow_changefeed.formats.base import LakeTable
from airflow_changefeed.formats.publish import open_table
from airflow_changefeed.lake.current import CurrentOutput, CurrentVersion
from airflow_changefeed.lake.merge import MergedFiles, MergeRequest, MergeTask, merge
from airflow_changefeed.lake.snapshots import ReadingFiles
from airflow_changefeed.spark.merge import run_merge
from tests.integration.spark.shop import Shop
from tests.unit.lake.stock import CAPTURE, TABLE, Stock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.ci, pytest.mark.spark]


class CurrentShop(Shop):
    """One whose merges keep a Delta table."""

    def look(self, output: CurrentOutput) -> CurrentVersion:
        """Look at the current table, a Delta table."""
        return current_version(output, None, None)

    def merge(self, **more: Any) -> None:
        """Bring the current table to the end of the export."""
        request = MergeRequest(
            CAPTURE, self.stock.export, self.stock.lake, self.exported, "tests/run", **more
        )

        def open_lake(output: CurrentOutput) -> LakeTable:
            return open_table("delta", output, use=CURRENT_TABLE)

        def run(task: MergeTask) -> MergedFiles:
            return run_merge(lambda: self.spark, task, JobConnection({}), self.said.append)

        merge(request, None, open_lake, run, self.said.append)

    def spoil(self, number: int) -> None:
        """Change a row in a file of the table, unseen by the table's log."""
        data = CurrentOutput(self.stock.lake, CAPTURE, TABLE).layout.data
        for path in (Path(data, name) for name in DeltaTable(data).file_uris()):
            table = pq.read_table(path, partitioning=None)
            rows = table.to_pylist()
            for row in rows:
                if row["id"] == number:
                    row["name"] = "spoiled"
            pq.write_table(table.from_pylist(rows, table.schema), path)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def shop(spark: SparkSession, tmp_path: Path) -> CurrentShop:
    """A table of a hundred rows with a snapshot."""
    return CurrentShop(spark, Stock.create(tmp_path))


@pytest.mark.parametrize(
    "kept", [{}, {"deleted": "keep"}, {"history": True}], ids=["rows", "deleted", "versions"]
)
def test_a_current_table_is_compared_as_it_is(shop: CurrentShop, kept: dict[str, Any]) -> None:
    """
    Its own rows count, not the fold's; repair gives the base from which it is made again.

    Rows that are deleted, and versions that have ended, are not of the table.
    """
    shop.merge(**kept)
    shop.stock.change("update stock set name = 'new' where id = 50", "delete from stock where id = 8")
    shop.export()
    shop.merge(**kept)
    shop.spoil(20)
    shop.stock.change("update stock set amount = 9.5 where id = 51")
    assert shop.reconciled().equal
    found = shop.reconciled(base="current", repair=True)
    assert [(one.kind, one.key["id"], one.columns) for one in found.differences] == [
        ("different", "20", ("name",))
    ]
    assert found.base.startswith("the table at ")
    assert f"Make a current table again with base={format_time(found.begin)}" in found.text
    shop.export()
    shop.merge(base=found.begin, **kept)
    assert shop.reconciled(base="current").equal


def test_a_current_table_that_went_on_is_compared_as_it_was(shop: CurrentShop) -> None:
    """Once the export reaches the end of the reading, merges have gone beyond it."""
    shop.merge()
    with pytest.raises(NotExportedError):
        shop.reconcile(base="current")
    shop.stock.change("delete from stock where id = 7")
    shop.export()
    shop.merge()
    found = shop.reconcile(base="current")
    assert (found.equal, found.rows) == (True, 100)


def test_a_current_table_whose_files_were_removed_meanwhile_is_read_again(shop: CurrentShop) -> None:
    """The merges keep files for a shorter time than the export is behind."""
    shop.merge()
    with pytest.raises(NotExportedError):
        shop.reconcile(base="current")
    output = CurrentOutput(shop.stock.lake, CAPTURE, TABLE)
    before = output.files.names(output.layout.data)
    shop.stock.change("update stock set name = 'new'")
    shop.export()
    shop.merge()
    for folder in before:
        output.files.remove(f"{output.layout.data}/{folder}") if folder != "_delta_log" else None
    with pytest.raises(
        TransientError, match=r"as it was at .* is gone: .* Give merges a keep_for that is longer"
    ):
        shop.reconcile(base="current")
    assert shop.reconciled(base="current").equal


def test_a_current_table_that_is_not_there_is_named(shop: CurrentShop) -> None:
    """Before the table is read; and one that others have changed."""
    with pytest.raises(
        TableError, match=r"is not a current table of Delta Lake or Iceberg: make one with Change"
    ):
        shop.reconcile(base="current")
    assert ReadingFiles(shop.stock.lake, CAPTURE, TABLE).all() == []
    shop.merge()
    DeltaTable(CurrentOutput(shop.stock.lake, CAPTURE, TABLE).layout.data).delete("id = 20")
    written = (
        r"something other than a merge has written to .*\. Restore the version .* or make the table again"
    )
    with pytest.raises(TableError, match=written):
        shop.reconcile(base="current")
    shop.stock.change("update stock set amount = 9.5 where id = 51")
    shop.export()
    with pytest.raises(TableError, match=written):
        shop.merge()
    with pytest.raises(InvalidArgumentError, match="'newest', 'beginning', 'current', the time of a state"):
        shop.reconcile(base="table")
