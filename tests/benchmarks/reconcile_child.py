# SPDX-License-Identifier: Apache-2.0
"""
Compares a table with its export again and again: ``python -m tests.benchmarks.reconcile_child ROUNDS DATABASE
FOLDER CHANGES``. A round has two halves, as a task that defers: one that reads the table, and one that
compares; the export between them does not count.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from datetime import datetime
from functools import partial

from airflow_changefeed.connections.output import current_version
from airflow_changefeed.core.values import from_milliseconds, to_milliseconds
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import NotExportedError
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.export.parts import run_here
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.lake.reconcile import ReconcileRequest, ReconcileTask, reconcile
from airflow_changefeed.lake.reconciliation import Comparison, Reconciliation
from airflow_changefeed.lake.snapshot_ranges import read_here
from airflow_changefeed.lake.take_snapshot import SnapshotRequest
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.spark.reconcile import run_comparison
from tests.benchmarks.snapshot import ROWS, TABLE
from tests.benchmarks.snapshot_child import capture, take
from tests.benchmarks.spark_ways import spark_session
from tests.benchmarks.watch import measured

CAPTURE = f"{TABLE}_changes"


def export(source: SqliteFeedSource, path: str, start: datetime) -> datetime:
    """Export everything since a time in one window, and return its end."""
    # Longer than the present millisecond, which may have more events.
    while (end := source.now()) <= from_milliseconds(to_milliseconds(start) + 1):
        pass
    source.seal(CAPTURE, end)
    store = ExportStore(path, CAPTURE)
    request = ExportRequest(CAPTURE, path, "benchmark", "benchmark", [Window(start, end)])
    run_here(source, store, make_plan(source, store, request), lambda line: None)
    return end


def compared(source: SqliteFeedSource, lake: str, path: str) -> Reconciliation:
    """Read the table, unless that was done, and compare it with its export."""
    request = ReconcileRequest(SnapshotRequest(CAPTURE, None, lake, "benchmark"), path)

    def compare(task: ReconcileTask) -> Comparison:
        return run_comparison(
            lambda: spark_session(is_javas_work=True), task, JobConnection({}), lambda line: None
        )

    look = partial(current_version, storage_options=None, catalog_conn_id=None)
    return reconcile(source, request, None, partial(read_here, source), compare, lambda line: None, look)


def main(rounds: str, database: str, folder: str, changes: str) -> None:
    """Take a base, change some rows, warm up by rounds that do not count, and measure."""
    source, lake, path = capture(database), f"{folder}/lake", f"{folder}/export"
    take(source, lake)
    with contextlib.closing(sqlite3.connect(database)) as connection:
        step = ROWS // int(changes)
        connection.execute(f'update "{TABLE}" set price = price + 1 where id % ? = 0', (step,))
        connection.commit()
    exported = export(source, path, source.capture(CAPTURE).enabled_at)
    spark_session(is_javas_work=True)
    for number in range(-2, int(rounds)):
        with measured(f"read {number}"), contextlib.suppress(NotExportedError):
            compared(source, lake, path)
        exported = export(source, path, exported)
        with measured(f"compare {number}") as result:
            found = compared(source, lake, path)
            result.update(rows=found.rows, equal=found.equal)
    spark_session().stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
