# SPDX-License-Identifier: Apache-2.0
"""
### Export a change feed, one file.

Each run exports a day as 24 hourly windows of Parquet files, complete and without duplicates. Start a
*Backfill* for the past. *Trigger* exports a day, or any window of whole hours, again and replaces it.
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


with DAG(
    "changefeed_quickstart",
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    params=window_params(),
    doc_md=__doc__,
    tags=["changefeed"],
):
    ChangefeedToParquetOperator(
        task_id="export",
        feed=FEED,
        path=PATH,
        consumer="warehouse",
        unit=timedelta(hours=1),
        changefeed_conn_id=CONN_ID,
        conn_id=SPARK_CONN_ID,
        retries=2,
    )
