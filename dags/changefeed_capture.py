# SPDX-License-Identifier: Apache-2.0
"""
### Capture a table, export its changes and fold them back into its state.

The programs that write `nyc.Board` stay as they are. `capture` lets the database record each insert, update
and delete, in the writer's transaction; enabling a capture again changes nothing. `base` reads the rows that
the table has, once, while the programs go on writing, and again after a gap. `export` writes the changes of
the run's window to Parquet. `fold` writes the state that the table had at the window's end, into a folder of
its own.

* A capture records changes from the moment it is enabled, so there is nothing to backfill before that. The
  first state is that at the end of the first window that ends after the base was read.
* *Trigger* exports the last complete hour, or the window from `window_start` to `window_end`, in whole units.
* If the connection's login may not create triggers, let a DBA enable the capture, and delete the first task.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import DAG, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import (
    CaptureSpec,
    ChangefeedFoldOperator,
    ChangefeedHook,
    ChangefeedSnapshotOperator,
    ChangefeedToParquetOperator,
    KeyChange,
    TableCapture,
    window_params,
)

CONN_ID = "changefeed_default"
SPARK_CONN_ID = "spark_default"
PATH = "~/changefeed-tutorial/flights"
FOLD_PATH = "~/changefeed-tutorial/folded"
UNIT = timedelta(hours=1)
CAPTURE = CaptureSpec(
    # Two shards, by the key: the changes of one flight stay in order.
    tables=(TableCapture("nyc.Board", shard="FlightID % 2"),),
    # Without it, an update that changes a row's key would lose the old key, and could not be folded.
    key_change=KeyChange.DELETE_INSERT,
    with_sequence=True,
    # The guard is a trigger on the database's DDL: ask your DBA before you enable it.
    guard_schema=False,
)


with DAG(
    "changefeed_capture",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    params=window_params(),
    doc_md=__doc__,
    tags=["changefeed"],
):

    @task
    def capture() -> str:
        """Record all changes from the first run on."""
        return ChangefeedHook(CONN_ID).source().enable_capture(CAPTURE).name

    base = ChangefeedSnapshotOperator(
        task_id="base",
        feed=CAPTURE.full_name,
        output_path=FOLD_PATH,
        only_if_missing=True,
        changefeed_conn_id=CONN_ID,
        conn_id=SPARK_CONN_ID,
        local_below=100_000,  # rows; smaller tables are read without Spark
        max_active_tis_per_dag=1,
    )
    export = ChangefeedToParquetOperator(
        task_id="export",
        feed=CAPTURE.full_name,
        path=PATH,
        consumer="warehouse",
        unit=UNIT,
        changefeed_conn_id=CONN_ID,
        conn_id=SPARK_CONN_ID,
        local_below=100_000,  # rows; smaller windows are written without Spark
        max_active_tis_per_dag=2,
    )

    @task.short_circuit
    def can_fold(exported: dict[str, Any], base: dict[str, Any]) -> bool:
        """Skip the fold of a window without changes, and of one that ends before the base was read."""
        ends = [span.rpartition("/")[2].removesuffix("Z") for span in exported["windows"]]
        return bool(exported["rows"]) and max(ends) >= base["exact_from"].removesuffix("Z")

    fold = ChangefeedFoldOperator(
        task_id="fold",
        feed=CAPTURE.full_name,
        path=PATH,
        output_path=FOLD_PATH,
        conn_id=SPARK_CONN_ID,
        # Each run starts Spark, and backfills ignore the DAG's max_active_runs.
        max_active_tis_per_dag=1,
    )
    capture() >> [base, export]
    can_fold(export.output, base.output) >> fold
