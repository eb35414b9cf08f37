# SPDX-License-Identifier: Apache-2.0
"""A partitioned DAG: its runs have a partition date and no data interval; days of a local time zone."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG, CronPartitionTimetable

from airflow_changefeed import ChangefeedSensor, ChangefeedToParquetOperator

PATH = "/tmp/changefeed-export"

with DAG(
    "partitioned",
    schedule=CronPartitionTimetable("0 0 * * *", timezone="Europe/Copenhagen", key_format="%Y-%m-%d"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
):
    wait = ChangefeedSensor(task_id="wait", feed="nyc.Flight", consumer="warehouse", poke_interval=1)
    export = ChangefeedToParquetOperator(
        task_id="export",
        feed="nyc.Flight",
        path=PATH,
        consumer="warehouse",
        unit=timedelta(hours=1),
        local_below=10_000,
        conn_id="no_such_spark",
    )
    wait >> export
