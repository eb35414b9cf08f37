# SPDX-License-Identifier: Apache-2.0
"""An export that begins before its window has ended, by a database's clock that is years behind Airflow's."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from functools import cache
from typing import Any

from airflow.sdk import DAG

from airflow_changefeed import ChangefeedToParquetOperator
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.tasks import waiting

PATH = "/tmp/changefeed-export"
END = datetime(2013, 4, 2, tzinfo=timezone.utc)


@cache
def begun() -> float:
    """Return when the task first asked."""
    return time.time()


def now_ms(database: SqliteDatabase) -> int:
    """Return the database's clock, which is two seconds before the window's end when the task begins."""
    return int((END.timestamp() - 2 + time.time() - begun()) * 1000)


class Export(ChangefeedToParquetOperator):
    """Defers at once: the test has no minute."""

    def execute(self, context: Any) -> dict[str, Any]:
        """Set the clock, and export; not when the file is parsed, as other DAGs are in the same process."""
        SqliteDatabase.now_ms = now_ms  # type: ignore[method-assign]
        waiting.SLEEP = timedelta(0)
        return super().execute(context)


with DAG("waiting", schedule=None, start_date=datetime(2013, 1, 1, tzinfo=timezone.utc), catchup=False):
    Export(
        task_id="export",
        feed="nyc.Flight",
        path=PATH,
        consumer="warehouse",
        window_start="2013-03-30T00:00:00Z",
        window_end=END,
        local_below=1000,
        conn_id="no_such_spark",
    )
