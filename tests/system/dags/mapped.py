# SPDX-License-Identifier: Apache-2.0
"""One DAG for many feeds, by mapped tasks; small enough to need no Spark."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import ChangefeedSensor, ChangefeedToParquetOperator

PATH = "/tmp/changefeed-export"
FEEDS = ["nyc.Flight", "nyc.Weather"]

with DAG(
    "mapped",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
):
    wait = ChangefeedSensor.partial(task_id="wait", consumer="warehouse", poke_interval=1).expand(feed=FEEDS)
    export = ChangefeedToParquetOperator.partial(
        task_id="export",
        path=PATH,
        consumer="warehouse",
        unit=timedelta(hours=1),
        local_below=1000,
        conn_id="no_such_spark",
    ).expand(feed=FEEDS)
    wait >> export
