# SPDX-License-Identifier: Apache-2.0
"""
### Export hourly windows of many feeds by one Spark job.

`plan` chooses the feeds and says what is to be exported, `submit` runs one job for all of them, and `finish`
is mapped: each feed has its own cursor, asset event and failure. A feed that fails stops no other.

* `FEEDS` is a pattern, or a list of names and patterns. A new feed that it matches is exported from the next
  run on.
* Clear `submit` and the tasks after it to start the job again: it does what is left.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import changefeed_export_group, window_params

CONN_ID = "changefeed_default"
SPARK_CONN_ID = "spark_default"
PATH = "~/changefeed-tutorial/flights"
FEEDS = "nyc.*"
EXCLUDE = ["nyc.*_test"]
CONSUMER = "warehouse"

with DAG(
    "changefeed_many_feeds",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    # One job at a time, however many runs a backfill has.
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    params=window_params(),
    doc_md=__doc__,
    tags=["changefeed"],
):
    changefeed_export_group(
        feeds=FEEDS,
        exclude=EXCLUDE,
        path=PATH,
        consumer=CONSUMER,
        unit=timedelta(hours=1),
        changefeed_conn_id=CONN_ID,
        spark={"conn_id": SPARK_CONN_ID},
    )
