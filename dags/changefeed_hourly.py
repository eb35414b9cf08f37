# SPDX-License-Identifier: Apache-2.0
"""
### Keep an export of a change feed up to date, hour by hour.

`export` waits until the hour has ended by the database's clock, seals it, writes its events to Parquet and
moves the cursor of the consumer `warehouse`, which an Airflow Variable shows.

* *Backfill* exports past hours and replaces those that are already exported.
* *Trigger* exports the last complete hour, or the window from `window_start` to `window_end`, in whole hours.
* `changefeed_quickstart` exports days into the same folder with the same cursor, cut into the same hours. So
  you can backfill a year by days and keep it up to date by hours.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import ChangefeedToParquetOperator, window_params

CONN_ID = "changefeed_default"
SPARK_CONN_ID = "spark_default"
FEED = "nyc.Flight"
PATH = "~/changefeed-tutorial/flights"
CONSUMER = "warehouse"


with DAG(
    "changefeed_hourly",
    # Not a bare cron string: its runs have no data interval, so there is no window to export.
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True},
    params=window_params(),
    doc_md=__doc__,
    tags=["changefeed"],
):
    ChangefeedToParquetOperator(
        task_id="export",
        feed=FEED,
        path=PATH,
        consumer=CONSUMER,
        unit=timedelta(hours=1),
        changefeed_conn_id=CONN_ID,
        conn_id=SPARK_CONN_ID,
        local_below=10_000,  # rows; smaller hours are written without Spark
        # Each run may start Spark, and backfills ignore the DAG's max_active_runs.
        max_active_tis_per_dag=2,
    )
