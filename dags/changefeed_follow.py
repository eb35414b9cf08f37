# SPDX-License-Identifier: Apache-2.0
"""
### Follow an export: run when windows of it are complete.

Each run of `changefeed_hourly` or `changefeed_quickstart` emits an event of an Airflow asset.
`changefeed_follow` is scheduled on that asset: it runs after each export. Its task `count` reads the rows of
the windows in the event, and no others, with pyarrow. An event of `changefeed_quickstart` has the 24 hours of
its day.

`changefeed_follow_days` runs once for each day, when all of its 24 hours are there, whichever runs have
exported them. Airflow 3.3 and later count the hours: each is a partition of a second asset.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import DAG, task

from airflow_changefeed import CompletedExport, changefeed_asset, changefeed_windows, export_dataset

try:
    from airflow.sdk import DayWindow, PartitionedAssetTimetable, RollupMapper, StartOfDayMapper
except ImportError:  # before Airflow 3.3
    RollupMapper = None  # type: ignore[assignment,misc]

FEED = "nyc.Flight"
PATH = "~/changefeed-tutorial/flights"
EXPORT, WINDOWS = changefeed_asset(FEED, PATH), changefeed_windows(FEED, PATH)


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


if RollupMapper is not None:
    WHOLE_DAYS = RollupMapper(upstream_mapper=StartOfDayMapper(), window=DayWindow())

    with DAG(
        "changefeed_follow_days",
        schedule=PartitionedAssetTimetable(assets=WINDOWS, default_partition_mapper=WHOLE_DAYS),
        start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
        catchup=False,
        doc_md=__doc__,
        tags=["changefeed"],
    ):

        @task
        def count_day(dag_run: Any = None) -> dict[str, Any]:
            """Count the rows of the run's day; reading fails if one of its windows is not there."""
            day = datetime.fromisoformat(dag_run.partition_key).replace(tzinfo=timezone.utc)
            rows = export_dataset(PATH, FEED, day, day + timedelta(days=1)).count_rows()
            return {"day": dag_run.partition_key, "rows": rows}

        count_day()
