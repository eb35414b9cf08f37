# SPDX-License-Identifier: Apache-2.0
"""Comparing a captured table with its export on each engine, and mending the export, while others write."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import NotExportedError
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.lake.reconcile import ReconcileRequest, reconcile
from airflow_changefeed.lake.reconciliation import Reconciliation
from airflow_changefeed.lake.snapshot_ranges import RangesToRead, read_here
from airflow_changefeed.lake.snapshots import SnapshotFiles
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.spark.fold import fold
from airflow_changefeed.spark.reconcile import run_comparison
from tests.clocks import after_now
from tests.integration.contract.captures import AUTHOR, CAPTURE, CaptureBench, set_up_author
from tests.integration.contract.engines import Engine
from tests.integration.spark.conftest import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]  # a fixture
pytestmark = [pytest.mark.ci, pytest.mark.spark]


class Lake:
    """The export of a captured table, and a base of it that is wrong."""

    def __init__(self, session: SparkSession, bench: CaptureBench, folder: Path) -> None:
        self.session = session
        self.bench = bench
        self.lake, self.path = str(folder / "lake"), str(folder / "out")
        request = SnapshotRequest(CAPTURE, None, self.lake, "tests/run")
        source = bench.source
        self.base = take_snapshot(source, request, None, partial(read_here, source), lambda line: None)
        self.end = self.base.begin
        bench.run("update \"shop.author\" set name = 'first' where id = 5")
        self.export()

    def spoil(self) -> None:
        """Lose a row of the base, change one, and let one stay that the table does not have."""
        folder = SnapshotFiles(self.lake, CAPTURE, AUTHOR.name).folder(self.base.token)
        (path,) = (Path(folder) / name for name in self.base.files)
        rows = pq.read_table(path)
        spoiled = [row for row in rows.to_pylist() if row["id"] != 1]
        spoiled[-1] = {**spoiled[-1], "name": "spoiled"}
        spoiled.append({**spoiled[0], "id": 77})
        pq.write_table(rows.from_pylist(spoiled, rows.schema), path)

    def export(self) -> None:
        """Export what is new."""
        begin, self.end = self.end, after_now(self.bench.source)
        self.bench.source.seal(CAPTURE, self.end)
        store = ExportStore(self.path, CAPTURE)
        request = ExportRequest(CAPTURE, self.path, "tests", "tests/run", [Window(begin, self.end)])
        run_here(self.bench.source, store, make_plan(self.bench.source, store, request), lambda line: None)

    def compare(self, *statements: str, **more: Any) -> Reconciliation:
        """Compare while somebody writes, as soon as the export reaches until the table was read."""
        source = self.bench.source

        def read(files: SnapshotFiles, wanted: RangesToRead) -> None:
            self.bench.run(*statements)
            read_here(source, files, wanted)

        def compare(task: Any) -> Any:
            return run_comparison(lambda: self.session, task, JobConnection({}), lambda line: None)

        def look(output: Any) -> Any:
            raise AssertionError("no current table is compared")

        request = ReconcileRequest(
            SnapshotRequest(CAPTURE, None, self.lake, "tests/run", range_rows=3), self.path, **more
        )
        with pytest.raises(NotExportedError, match="a retry within a day compares"):
            reconcile(source, request, None, read, compare, lambda line: None, look)
        self.export()
        return reconcile(source, request, None, read, compare, lambda line: None, look)

    def folded(self) -> list[tuple[Any, ...]]:
        """Return the rows that a fold at the end of the export gives."""
        frame = fold(self.session, self.path, CAPTURE, at=self.end, states=self.lake)
        return sorted((row["id"], row["name"]) for row in frame.collect())

    def table(self) -> list[tuple[Any, ...]]:
        """Return the rows of the table."""
        return sorted(map(tuple, self.bench.engine.rows('select id, name from "shop.author"')))


@pytest.fixture
def lake(engine: Engine, spark: SparkSession, tmp_path: Path) -> Lake:
    """A table of ten rows."""
    rows = [(number, f"name {number}") for number in range(10)]
    bench = set_up_author(engine, *rows, key_change="delete_insert", guard_table=False)
    return Lake(spark, bench, tmp_path)


def test_what_differs_is_found_and_mended_while_others_write(lake: Lake) -> None:
    """And nothing else: what was changed, added, deleted and moved while the table was read is equal."""
    lake.spoil()
    changes = (
        "update \"shop.author\" set name = 'changed' where id in (2, 8)",
        'delete from "shop.author" where id = 3',
        'update "shop.author" set id = 50 where id = 4',
        "insert into \"shop.author\" (id, name) values (60, 'new')",
    )
    found = lake.compare(*changes, repair=True)
    differences = [(one.kind, one.key["id"], one.columns) for one in found.differences]
    assert differences == [("missing", "1", ()), ("different", "9", ("name",)), ("extra", "77", ())]
    assert (found.rows, found.repaired) == (10, True)
    lake.export()
    assert lake.folded() == lake.table()
    assert lake.compare("update \"shop.author\" set name = 'later' where id > 5").equal
