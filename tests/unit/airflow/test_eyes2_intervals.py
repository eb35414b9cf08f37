# SPDX-License-Identifier: Apache-2.0
"""Which intervals Airflow takes for the dates of a printed backfill."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.models.backfill import _get_info_list
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable
from airflow.timetables.trigger import CronTriggerTimetable

from airflow_changefeed import ChangefeedToParquetOperator
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import format_time, parse_time
from airflow_changefeed.cursors.cursors import advance
from airflow_changefeed.plugins.runs import _dag
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.browser.exports import Nowhere
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.page import Visitor, pause, store_dags
from tests.unit.airflow.test_page_overview import HOUR, begin, troubles

pytestmark = since("3.1", "the page")

DAG_ID = "eyes2_intervals"
BY = f"{DAG_ID}/a run/export/1"


@pytest.mark.parametrize(
    "schedule",
    [
        CronDataIntervalTimetable("0 * * * *", timezone="Europe/Vienna"),
        CronTriggerTimetable("0 * * * *", timezone="UTC", interval=HOUR),
    ],
    ids=["interval", "trigger"],
)
def test_eyes2_a_backfill_of_a_missing_window_takes_that_one(
    schedule: Any, server: None, source: SqliteFeedSource, tmp_path: Path
) -> None:
    """Whatever the timetable counts by: begins of intervals, or the times of runs, which are their ends."""
    with DAG(DAG_ID, schedule=schedule, start_date=START, catchup=False) as dag:
        ChangefeedToParquetOperator(
            task_id="export", feed=FEED, consumer=CONSUMER, path=str(tmp_path), conn_id="changefeed_default"
        )
    store_dags(dag)
    pause(DAG_ID, is_paused=False)
    source.drain(FEED)
    begin(source, by=BY)
    source.seal(FEED, START + 6 * HOUR)
    first, hole, back, last = (Ulid.floor(START + hours * HOUR).previous() for hours in (0, 1, 3, 6))
    done = [UlidRange(first, hole), UlidRange(back, last)]
    advance(source, Nowhere(), CONSUMER, FEED, dict.fromkeys((0, 1), done), by=BY)
    remedy = troubles()["window-missing"]["remedy"]
    ((start, end),) = re.findall(r"--from-date (\S+) --to-date (\S+)", remedy)
    found = _get_info_list(
        from_date=parse_time(start), to_date=parse_time(end), reverse=False, dag=_dag(DAG_ID)
    )
    begins = [
        datetime.fromtimestamp(one.data_interval.start.timestamp(), timezone.utc)
        for one in found
        if one.data_interval
    ]
    assert begins == [START + HOUR, START + 2 * HOUR]


@pytest.mark.parametrize(
    "schedule",
    [
        CronDataIntervalTimetable("0 * * * *", timezone="Europe/Vienna"),
        CronTriggerTimetable("0 * * * *", timezone="UTC", interval=HOUR),
    ],
    ids=["interval", "trigger"],
)
def test_eyes2_the_page_s_own_backfill_takes_that_window(
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
