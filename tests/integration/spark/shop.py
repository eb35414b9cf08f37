# SPDX-License-Identifier: Apache-2.0
"""A captured table with a base, which is compared with its export; needs neither Airflow nor Delta Lake."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from airflow_changefeed.exceptions import (
    NotExportedError,
)
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.current import CurrentOutput, CurrentVersion
from airflow_changefeed.lake.fold_plan import FoldTask
from airflow_changefeed.lake.reconcile import ReconcileRequest, ReconcileTask, reconcile
from airflow_changefeed.lake.reconciliation import Comparison, Reconciliation
from airflow_changefeed.lake.snapshot_ranges import RangesToRead, read_here
from airflow_changefeed.lake.snapshots import SnapshotFiles
from airflow_changefeed.lake.states import new_attempt
from airflow_changefeed.lake.take_snapshot import SnapshotRequest, take_snapshot
from airflow_changefeed.spark.fold import fold, run_fold
from airflow_changefeed.spark.reconcile import run_comparison
from tests.unit.lake.stock import CAPTURE, TABLE, Stock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Shop:
    """A captured table with a base, whose export follows each reading."""

    def __init__(self, spark: SparkSession, stock: Stock, range_rows: int = 30) -> None:
        self.spark = spark
        self.stock = stock
        self.range_rows = range_rows
        self.said: list[str] = []
        request = SnapshotRequest(CAPTURE, None, stock.lake, "tests/run")
        self.base = take_snapshot(
            stock.source, request, None, partial(read_here, stock.source), self.said.append
        )
        stock.change("update stock set amount = 0.5 where id = 3")
        self.exported = stock.export_all().end

    def behind(self, *statements: str) -> None:
        """Change the table while its capture does not look; it notices another number of rows."""
        path = self.stock.source.database.path
        with closing(sqlite3.connect(path, timeout=20, isolation_level=None)) as one:
            one.execute("begin immediate")
            found = one.execute(
                "select name, sql from sqlite_master where type = 'trigger' and tbl_name = ?", (TABLE,)
            ).fetchall()
            assert found
            for name, _ in found:
                one.execute(f'drop trigger "{name}"')
            for statement in statements:
                one.execute(statement.replace("stock", f'"{TABLE}"'))
            for _, sql in found:
                one.execute(sql)
            one.execute("commit")

    def export(self) -> None:
        """Export what is new."""
        self.exported = self.stock.export_all(self.exported).end

    def reconcile(self, **more: Any) -> Reconciliation:
        """Compare; the export reaches behind the reading in time."""
        reading = {"range_rows": self.range_rows, "where": more.pop("where", "")}
        request = ReconcileRequest(
            SnapshotRequest(CAPTURE, None, self.stock.lake, "tests/run", **reading), self.stock.export, **more
        )

        def read(files: SnapshotFiles, wanted: RangesToRead) -> None:
            read_here(self.stock.source, files, wanted)

        return reconcile(self.stock.source, request, None, read, self.compare, self.said.append, self.look)

    def reconciled(self, **more: Any) -> Reconciliation:
        """Compare, and export meanwhile until the time at which the table was read."""
        with pytest.raises(NotExportedError, match=r"a retry within a day compares the rows that were read"):
            self.reconcile(**more)
        self.export()
        return self.reconcile(**more)

    def folded(self) -> list[dict[str, Any]]:
        """Return what the next fold gives."""
        frame = fold(self.spark, self.stock.export, CAPTURE, at=self.exported, states=self.stock.lake)
        return sorted((row.asDict() for row in frame.collect()), key=lambda row: row["id"])

    def fold(self) -> None:
        """Export what is new, and write the state at its end."""
        self.export()
        root, attempt = self.stock.lake, new_attempt()
        task = FoldTask(CAPTURE, self.stock.export, root, self.exported, TABLE, attempt, "tests/fold")
        run_fold(lambda: self.spark, task, JobConnection({}), self.said.append)

    def compare(self, task: ReconcileTask) -> Comparison:
        """Run the job here."""
        return run_comparison(lambda: self.spark, task, JobConnection({}), self.said.append)

    def look(self, output: CurrentOutput) -> CurrentVersion:
        """Look at the current table, which this shop has not."""
        raise AssertionError(f"{output.table} is not a current table")
