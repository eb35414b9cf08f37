# SPDX-License-Identifier: Apache-2.0
"""
### Follow an export: run when windows of it are complete.

Each run of `changefeed_hourly` or `changefeed_quickstart` emits an event of an Airflow asset. This DAG is
scheduled on that asset. `count` reads the rows of the windows in the event, and no others, with pyarrow. An
event of `changefeed_quickstart` has the 24 hours of its day.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from airflow.sdk import DAG, task

from airflow_changefeed import CompletedExport, changefeed_asset

FEED = "nyc.Flight"
PATH = "/tmp/changefeed-export"
EXPORT = changefeed_asset(FEED, PATH)


with DAG(
    "changefeed_follow",
    schedule=[EXPORT],
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    doc_md=__doc__,
    tags=["changefeed"],
):

    @task
    def count(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """Count the rows of the windows that triggered this run; a manual run has none."""
        counted = []
        for event in triggering_asset_events.get(EXPORT, ()):
            for part in CompletedExport.from_extra(event.extra).each():
                rows = sum(batch.num_rows for batch in part.batches(columns=["changefeed_ulid"]))
                counted.append({"window": str(part.window or "batch"), "expected": part.rows, "rows": rows})
        return counted

    count()
