# SPDX-License-Identifier: Apache-2.0
"""
### Capture a table, export its changes and fold them back into its state.

Nobody who writes `nyc.Board` has to be changed: `capture` has the database record each insert, update and
delete, in the transaction that makes it. Enabling a capture is harmless to repeat, so the task is its
migration. `export` writes the changes of the run's window to Parquet, `fold` the state that the table had at
the window's end, into a folder of its own.

* A capture sees what is changed from now on, so there is nothing to backfill before it was enabled.
* *Trigger* exports the last complete hour, or the window given by `window_start` and `window_end`, in whole
  units of `CHANGEFEED_CAPTURE_UNIT` seconds (3600).
* Where the login of the connection may not make triggers, a DBA enables the capture once, and the task goes.

Where things are: the environment variables `CHANGEFEED_CAPTURED_TABLE`, `CHANGEFEED_EXPORT_PATH`,
`CHANGEFEED_FOLD_PATH`, `CHANGEFEED_CONN_ID` and `CHANGEFEED_SPARK_CONN_ID`. Windows with fewer rows than
`CHANGEFEED_LOCAL_BELOW` (100,000) are written without Spark.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from airflow_changefeed import (
    CaptureSpec,
    ChangefeedFoldOperator,
    ChangefeedHook,
    ChangefeedToParquetOperator,
    KeyChange,
    TableCapture,
    window_params,
)

TABLE = os.environ.get("CHANGEFEED_CAPTURED_TABLE", "nyc.Board")
PATH = os.environ.get("CHANGEFEED_EXPORT_PATH", "/tmp/changefeed-export")  # noqa: S108 - to try it out
FOLD_PATH = os.environ.get("CHANGEFEED_FOLD_PATH", "/tmp/changefeed-folded")  # noqa: S108 - likewise
CONN_ID = os.environ.get("CHANGEFEED_CONN_ID", "changefeed_default")
SPARK_CONN_ID = os.environ.get("CHANGEFEED_SPARK_CONN_ID", "spark_default")
LOCAL_BELOW = int(os.environ.get("CHANGEFEED_LOCAL_BELOW", "100000"))
UNIT = timedelta(seconds=int(os.environ.get("CHANGEFEED_CAPTURE_UNIT", "3600")))
CAPTURE = CaptureSpec(
    # Two shards, by the key: what happens to one flight stays in order.
    tables=(TableCapture(TABLE, shard="FlightID % 2"),),
    # Else an update that gives a row another key would lose the old one, and could not be folded.
    key_change=KeyChange.DELETE_INSERT,
    with_sequence=True,
    # It would be a trigger on the database's DDL, which is a DBA's to decide.
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
        """Have the changes recorded, from the first run on; the rows that are there are recorded as well."""
        return ChangefeedHook(CONN_ID).source().enable_capture(CAPTURE, snapshot=True).name

    export = ChangefeedToParquetOperator(
        task_id="export",
        feed=CAPTURE.full_name,
        path=PATH,
        consumer="warehouse",
        unit=UNIT,
        changefeed_conn_id=CONN_ID,
        conn_id=SPARK_CONN_ID,
        local_below=LOCAL_BELOW,
        max_active_tis_per_dag=2,
    )

    @task.short_circuit
    def has_changed(exported: dict[str, Any]) -> bool:
        """Leave the fold out where nothing happened: the state is that of the window before."""
        return bool(exported["rows"])

    fold = ChangefeedFoldOperator(
        task_id="fold",
        feed=CAPTURE.full_name,
        path=PATH,
        output_path=FOLD_PATH,
        conn_id=SPARK_CONN_ID,
        # Holds for backfills too, which ignore a DAG's max_active_runs: each one starts a Spark.
        max_active_tis_per_dag=1,
    )
    capture() >> export
    has_changed(export.output) >> fold
