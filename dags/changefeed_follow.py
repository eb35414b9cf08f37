# SPDX-License-Identifier: Apache-2.0
"""
### Follow an export: run when windows of it are complete.

What `changefeed_hourly` or `changefeed_quickstart` has exported is an event of an Airflow asset. This DAG is
scheduled on that asset: `count` reads the rows of the windows that the event tells, and of no others, with
pyarrow, by the manifests that it names. A run of `changefeed_quickstart` tells the 24 hours of its day.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import Any

from airflow.sdk import DAG, task

from airflow_changefeed import CompletedExport, changefeed_asset

EXPORT = changefeed_asset(
    os.environ.get("CHANGEFEED_FEED", "nyc.Flight"),
    os.environ.get("CHANGEFEED_EXPORT_PATH", "/tmp/changefeed-export"),  # noqa: S108 - to try it out
)


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
        """Count the rows of the windows that this run was triggered by; of none, in a run by hand."""
        counted = []
        for event in triggering_asset_events.get(EXPORT, ()):
            for told in CompletedExport.from_extra(event.extra).each():
                rows = sum(batch.num_rows for batch in told.batches(columns=["changefeed_ulid"]))
                counted.append({"window": str(told.window or "batch"), "told": told.rows, "rows": rows})
        return counted

    count()
