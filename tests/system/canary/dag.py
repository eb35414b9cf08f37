# SPDX-License-Identifier: Apache-2.0
"""Tasks that use secrets, and fail in all ways; a test copies this file into the folder of its own DAGs."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import ChangefeedSensor, ChangefeedToParquetOperator

FEED = "nyc.Flight"
# Told in the log are the command line and everything that Spark says of itself.
SPARK = {
    "verbose": True,
    "conf": {
        "spark.log.level": "DEBUG",
        "spark.ui.enabled": "true",
        "spark.ui.port": os.environ["CANARY_UI"],
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": os.environ["CANARY_EVENTS"],
    },
}

with DAG(
    "canary",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    # Whoever tests this triggers the one run.
    end_date=datetime(2013, 1, 2, tzinfo=timezone.utc),
    catchup=False,
    default_args={"retries": 0, "feed": FEED, "consumer": "canary", "changefeed_conn_id": "canary_feed"},
):
    ChangefeedToParquetOperator(
        task_id="export",
        path=os.environ["CANARY_OUT"],
        path_conn_id="canary_store",
        unit=timedelta(hours=1),
        conn_id="canary_spark",
        **SPARK,
    )
    # The storage refuses, and repeats what it was sent.
    ChangefeedToParquetOperator(
        task_id="refused_by_the_storage",
        path=f"webhdfs://127.0.0.1:{os.environ['CANARY_HDFS']}/out",
        path_conn_id="canary_hdfs",
        local_below=100,
    )
    # The server speaks garbage.
    ChangefeedToParquetOperator(
        task_id="refused_by_the_server",
        path=os.environ["CANARY_OUT"],
        changefeed_conn_id="canary_sql",
        local_below=100,
    )
    ChangefeedSensor(task_id="failing_look", changefeed_conn_id="canary_sql", timeout=5)
    if "CANARY_TRIGGER" in os.environ:
        ChangefeedSensor(
            task_id="failing_trigger",
            changefeed_conn_id="canary_sql",
            deferrable=True,
            silent_fail=True,
            poke_interval=1,
            timeout=8,
        )
