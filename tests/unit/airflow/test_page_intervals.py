# SPDX-License-Identifier: Apache-2.0
"""Which intervals Airflow takes for the dates of the page's backfill."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.models.backfill import _get_info_list
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.timetables.trigger import CronTriggerTimetable

from airflow_changefeed import ChangefeedToParquetOperator
from airflow_changefeed.core.values import format_time
from airflow_changefeed.plugins.runs import _dag
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.page import Visitor, store_dags
from tests.unit.airflow.test_page_overview import HOUR

pytestmark = since("3.1", "the page")

DAG_ID = "page_intervals"
BY = f"{DAG_ID}/a run/export/1"


@pytest.mark.parametrize(
    "schedule",
    [
        CronDataIntervalTimetable("0 * * * *", timezone="Europe/Vienna"),
        CronTriggerTimetable("0 * * * *", timezone="UTC", interval=HOUR),
    ],
    ids=["interval", "trigger"],
)
def test_the_page_s_own_backfill_takes_that_window(
    schedule: Any, server: None, source: SqliteFeedSource, tmp_path: Path
) -> None:
    """What its dialog sends to Airflow."""
    with DAG(DAG_ID, schedule=schedule, start_date=START, catchup=False) as dag:
        ChangefeedToParquetOperator(
            task_id="export", feed=FEED, consumer=CONSUMER, path=str(tmp_path), conn_id="changefeed_default"
        )
    store_dags(dag)
    window = (format_time(START + HOUR), format_time(START + 3 * HOUR))
    dates = Visitor("OP").ask("backfill", dag_id=DAG_ID, unit_seconds=3600, start=window[0], end=window[1])
    start, end = (
        datetime.fromisoformat(dates[name].replace("Z", "+00:00")) for name in ("from_date", "to_date")
    )
    found = _get_info_list(from_date=start, to_date=end, reverse=False, dag=_dag(DAG_ID))
    begins = [
        datetime.fromtimestamp(one.data_interval.start.timestamp(), timezone.utc)
        for one in found
        if one.data_interval
    ]
    assert begins == [START + HOUR, START + 2 * HOUR]
