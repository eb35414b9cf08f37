# SPDX-License-Identifier: Apache-2.0
"""
### Export a change feed, one file.

Each day becomes 24 hours of Parquet files below `CHANGEFEED_EXPORT_PATH`, complete and without duplicates.
Start a *Backfill* for the past, or *Trigger* a day or any window of whole hours again: it is replaced as a
whole.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_changefeed import ChangefeedToParquetOperator, window_params

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
        feed=os.environ.get("CHANGEFEED_FEED", "nyc.Flight"),
        path=os.environ.get("CHANGEFEED_EXPORT_PATH", "/tmp/changefeed-export"),  # noqa: S108 - to try it
        consumer="warehouse",
        unit=timedelta(hours=1),
        changefeed_conn_id=os.environ.get("CHANGEFEED_CONN_ID", "changefeed_default"),
        conn_id=os.environ.get("CHANGEFEED_SPARK_CONN_ID", "spark_default"),
        retries=2,
    )
