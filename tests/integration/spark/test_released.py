# SPDX-License-Identifier: Apache-2.0
"""What released versions have left, for Spark: read, folded and merged on."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from airflow_changefeed import fold, open_source, read_export
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.formats.base import CURRENT, LakeTable
from airflow_changefeed.formats.publish import open_table
from airflow_changefeed.lake.current import CurrentOutput
from airflow_changefeed.lake.merge import merge
from airflow_changefeed.lake.merge_task import MergedFiles, MergeRequest, MergeTask
from airflow_changefeed.spark.merge import run_merge
from tests.minors import ICEBERG_CATALOG
from tests.tools.released.place import Left
from tests.tools.released.scenario import CAPTURE, FEED, FORMATS, TABLE, change_stock, export_stock
from tests.unit.airflow.conftest import metadata
from tests.unit.airflow.test_released import left

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["left", "metadata"]  # fixtures
pytestmark = [pytest.mark.ci, pytest.mark.spark, pytest.mark.airflow, pytest.mark.usefixtures("metadata")]


def until(left: Left) -> datetime:
    """Until when the version had exported its captured table."""
    return datetime.fromisoformat(left.documents["exported_until"])


def rows(frame: Any) -> list[list[Any]]:
    """Return a frame's rows as JSON has them, by key."""
    return sorted([row["id"], row["name"], row["amount"]] for row in frame.collect())


@pytest.mark.parametrize("name", FORMATS)
def test_outputs_are_read_by_spark(left: Left, spark: SparkSession, name: str) -> None:
    """All rows, of each format."""
    found = read_export(spark, left.lake(name), FEED).select("id", "item", "amount").collect()
    assert sorted(map(list, found)) == left.documents["rows"][FEED]


@pytest.mark.parametrize("base", ["state", "snapshot"])
def test_folds_go_on_from_what_was_left(left: Left, spark: SparkSession, base: str) -> None:
    """From the state, or from the snapshot before it; to what the table has by now."""
    changes, stock = left.lake("changes"), left.lake("stock")
    then = fold(spark, changes, CAPTURE, at=until(left), states=stock)
    assert rows(then) == left.documents["rows"][TABLE]
    change_stock(left, "update stock set amount = 100 where id = 2", "delete from stock where id = 8")
    at = export_stock(left, until(left))
    snapshot = datetime.fromisoformat(left.documents["snapshot"]["begin"])
    begin = until(left) if base == "state" else snapshot
    now = fold(spark, changes, CAPTURE, at=at, states=stock, base=begin)
    assert rows(now) == [
        [2, "name 2", 100.0] if row[0] == 2 else row for row in left.documents["rows"][TABLE] if row[0] != 8
    ]


@pytest.mark.parametrize("name", ["delta", pytest.param("iceberg", marks=ICEBERG_CATALOG)])
def test_current_tables_are_merged_on(left: Left, spark: SparkSession, name: str) -> None:
    """In one more commit."""
    change_stock(
        left, "update stock set amount = 100 where id = 2", "insert into stock values (9, 'name 9', 9)"
    )
    at = export_stock(left, until(left))
    assert open_source({"type": "sqlite", "path": str(left.database)}).capture_gaps(CAPTURE) == []

    def open_lake(output: CurrentOutput) -> LakeTable:
        if name == "delta":
            return open_table("delta", output, use=CURRENT)
        return open_table("iceberg", output, table="shop.stock", catalog=left.catalog, use=CURRENT)

    def run(task: MergeTask) -> MergedFiles:
        return run_merge(lambda: spark, task, JobConnection({}), lambda line: None)

    request = MergeRequest(
        CAPTURE,
        left.lake("changes"),
        left.lake(f"current_{name}"),
        at,
        "tests/run",
        states=left.lake("stock"),
        table_format=name,
        catalog_table="shop.stock" if name == "iceberg" else "",
    )
    done = merge(request, None, open_lake, run, lambda line: None)
    assert (done.at, done.rows, done.changed) == (at, 7, True)
