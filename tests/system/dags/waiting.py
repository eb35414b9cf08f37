# SPDX-License-Identifier: Apache-2.0
"""An export that begins before its window has ended, and waits for the end deferred."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG, task

from airflow_changefeed import ChangefeedToParquetOperator
from airflow_changefeed.hooks import changefeed_wait

PATH = "/tmp/changefeed-export"
# Else it would take more than a minute until a task defers.
changefeed_wait.SLEEP = timedelta(0)

with DAG("waiting", schedule=None, start_date=datetime(2013, 1, 1, tzinfo=timezone.utc), catchup=False):

    @task
    def soon() -> str:
        """Return a time that has not come when the next task begins."""
        return (datetime.now(timezone.utc) + timedelta(seconds=6)).isoformat(timespec="milliseconds")

    ChangefeedToParquetOperator(
        task_id="export",
        feed="nyc.Flight",
        path=PATH,
        consumer="warehouse",
        window_start="2013-03-30T00:00:00Z",
        window_end=soon(),
        local_below=1000,
        conn_id="no_such_spark",
    )
