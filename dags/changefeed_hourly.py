# SPDX-License-Identifier: Apache-2.0
"""
### Keep an export of a change feed up to date, hour by hour.

`wait` looks whether the feed has news, or whether the hour is over; `export` seals the hour, reads it with
Spark, writes it to Parquet and moves the cursor of the consumer `warehouse`, which is published as an Airflow
Variable.

* *Backfill* exports the hours of the past; what lies there already is replaced unit by unit.
* *Trigger* exports the last complete hour, or the window given by `window_start` and `window_end`, in whole
  hours.
* `changefeed_quickstart` writes the same units by days into the same place, with the same cursor: a year can
  be backfilled by days and kept up by hours.

Where things are: the environment variables `CHANGEFEED_FEED`, `CHANGEFEED_EXPORT_PATH`, `CHANGEFEED_CONN_ID`
and `CHANGEFEED_SPARK_CONN_ID`. Hours with fewer rows than `CHANGEFEED_LOCAL_BELOW` are written without Spark.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_changefeed import ChangefeedSensor, ChangefeedToParquetOperator, window_params

FEED = os.environ.get("CHANGEFEED_FEED", "nyc.Flight")
PATH = os.environ.get("CHANGEFEED_EXPORT_PATH", "/tmp/changefeed-export")  # noqa: S108 - to try it out
CONN_ID = os.environ.get("CHANGEFEED_CONN_ID", "changefeed_default")
SPARK_CONN_ID = os.environ.get("CHANGEFEED_SPARK_CONN_ID", "spark_default")
LOCAL_BELOW = int(os.environ.get("CHANGEFEED_LOCAL_BELOW", "0"))
CONSUMER = "warehouse"


with DAG(
    "changefeed_hourly",
    # Not a bare cron string: its runs have no interval to export (a CronTriggerTimetable).
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True},
    params=window_params(),
    doc_md=__doc__,
    tags=["changefeed"],
):
    wait = ChangefeedSensor(
        task_id="wait",
        feed=FEED,
        consumer=CONSUMER,
        changefeed_conn_id=CONN_ID,
        poke_interval=30,
        timeout=2 * 60 * 60,
        mode="reschedule",
    )
    export = ChangefeedToParquetOperator(
        task_id="export",
        feed=FEED,
        path=PATH,
        consumer=CONSUMER,
        unit=timedelta(hours=1),
        changefeed_conn_id=CONN_ID,
        conn_id=SPARK_CONN_ID,
        local_below=LOCAL_BELOW,
        # Holds for backfills too, which ignore a DAG's max_active_runs: each one starts a Spark.
        max_active_tis_per_dag=2,
    )
    wait >> export
