# SPDX-License-Identifier: Apache-2.0
"""Compares a table with its export on Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from airflow_changefeed.core.times import format_time
from airflow_changefeed.exceptions import own_error
from airflow_changefeed.export.job_connection import JobConnection
from airflow_changefeed.snapshots.reconcile import ReconcileTask, find_sides
from airflow_changefeed.snapshots.reconciliation import Comparison
from airflow_changefeed.spark.folds.fold_job import SETTINGS, session_settings
from airflow_changefeed.spark.reconcile.compare import compare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Times in keys are the database's own, or UTC.
_SETTINGS = {**SETTINGS, "spark.sql.session.timeZone": "UTC"}


def run_comparison(
    spark: Callable[[], SparkSession],
    task: ReconcileTask,
    connection: JobConnection,
    report: Callable[[str], None],
) -> Comparison:
    """Compare what was read of a table with what its export gives at that time."""
    table, lake = find_sides(task, connection.storage_options)
    since = "the beginning" if lake.base is None else lake.base.what
    report(
        f"changefeed reconcile: table {task.table} of feed {task.feed} at {format_time(table.at)} with its "
        f"export from {since} on"
    )
    running = spark()
    try:
        with session_settings(running, _SETTINGS):
            return compare(running, table, lake)
    except Exception as error:
        raise own_error(error) from error
