# SPDX-License-Identifier: Apache-2.0
"""
### Keep a Delta table equal to a table of the database.

`capture` lets the database record each change of `nyc.Board`, in the writer's transaction. `base` reads the
rows that the table has, once, while the programs go on writing. `export` writes the changes of the run's
window to Parquet. `merge` brings the Delta table `/tmp/changefeed-current/nyc.Board` to the window's end, in
one commit: it writes the files anew in which rows have changed, and leaves the others.

* Any reader of Delta Lake takes the table: `polars.read_delta`, DuckDB's `delta_scan`, Spark.
* A run that is retried or cleared changes nothing that is merged already.
* The first table is that at the end of the first window that ends after the base was read.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import DAG, task
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import (
    CaptureSpec,
    ChangefeedHook,
    ChangefeedMergeOperator,
    ChangefeedSnapshotOperator,
    ChangefeedToParquetOperator,
    KeyChange,
    TableCapture,
    window_params,
)

CONN_ID = "changefeed_default"
SPARK_CONN_ID = "spark_default"
PATH = "/tmp/changefeed-export"
CURRENT_PATH = "/tmp/changefeed-current"
UNIT = timedelta(hours=1)
CAPTURE = CaptureSpec(
    tables=(TableCapture("nyc.Board", shard="FlightID % 2"),),
    key_change=KeyChange.DELETE_INSERT,
    with_sequence=True,
    guard_schema=False,
)


with DAG(
    "changefeed_current",
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
        output_path=CURRENT_PATH,
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
    def can_merge(exported: dict[str, Any], base: dict[str, Any]) -> bool:
        """Skip a window that ends before the base was read."""
        ends = [span.rpartition("/")[2].removesuffix("Z") for span in exported["windows"]]
        return max(ends) >= base["exact_from"].removesuffix("Z")

    merge = ChangefeedMergeOperator(
        task_id="merge",
        feed=CAPTURE.full_name,
        path=PATH,
        output_path=CURRENT_PATH,
        table="nyc.Board",
        conn_id=SPARK_CONN_ID,
        # Of two at once one commits; the other would have run for nothing.
        max_active_tis_per_dag=1,
    )
    capture() >> [base, export]
    can_merge(export.output, base.output) >> merge
