# SPDX-License-Identifier: Apache-2.0
"""Which runs Airflow starts for the dates of a printed backfill."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path

import pytest
from airflow.models.backfill import _get_info_list
from airflow.sdk import DAG

from airflow_changefeed import ChangefeedToParquetOperator
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import parse_time
from airflow_changefeed.cursors.cursors import advance
from airflow_changefeed.plugins.runs import _dag
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.browser.exports import Nowhere
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.page import pause, store_dags
from tests.unit.airflow.test_page_overview import HOUR, begin, troubles

pytestmark = since("3.3", "partitions whose dates are a wall clock")

DAG_ID = "eyes2_partitions"
BY = f"{DAG_ID}/a run/export/1"


def store(path: Path, zone: str) -> None:
    """Store a DAG that exports partitions of an hour, each when it is over."""
    from airflow.timetables.trigger import CronPartitionTimetable

    schedule = CronPartitionTimetable("0 * * * *", timezone=zone, run_offset=-1)
    with DAG(DAG_ID, schedule=schedule, start_date=START, catchup=False) as dag:
        ChangefeedToParquetOperator(
            task_id="export", feed=FEED, consumer=CONSUMER, path=str(path), conn_id="changefeed_default"
        )
    store_dags(dag)
    pause(DAG_ID, is_paused=False)


def partitions(remedy: str, since: datetime | None = None) -> list[datetime]:
    """Return the begins of the partitions that Airflow takes for a command, of some time at least."""
    ((start, end),) = re.findall(r"--from-date (\S+) --to-date (\S+)", remedy)
    start, end = (parse_time(date.rstrip(".")) for date in (start, end))
    found = _get_info_list(from_date=max(start, since or start), to_date=end, reverse=False, dag=_dag(DAG_ID))
    return [
        datetime.fromtimestamp(one.partition_date.timestamp(), timezone.utc)
        for one in found
        if one.partition_date
    ]


def test_eyes2_a_backfill_of_partitions_leaves_out_the_one_that_has_not_ended(
    server: None, source: SqliteFeedSource, tmp_path: Path
) -> None:
    """Of intervals Airflow leaves it out by itself, of partitions it does not."""
    store(tmp_path, "UTC")
    source.drain(FEED)
    begin(source, by=BY)
    pause(DAG_ID, is_paused=True)
    now = source.now()
    begins = partitions(troubles()["dag-paused"]["remedy"], now - 5 * HOUR)
    assert len(begins) >= 3
    assert [one for one in begins if one + HOUR > now] == []


@pytest.mark.parametrize("zone", ["UTC", "Europe/Vienna", "America/New_York"])
def test_eyes2_a_backfill_of_a_missing_partition_takes_that_one(
    zone: str, server: None, source: SqliteFeedSource, tmp_path: Path
) -> None:
    """Airflow reads the dates of partitions as a wall clock of the timetable's zone, whatever theirs is."""
    store(tmp_path, zone)
    source.drain(FEED)
    begin(source, by=BY)
    source.seal(FEED, START + 6 * HOUR)
    first, hole, back, last = (Ulid.floor(START + hours * HOUR).previous() for hours in (0, 1, 3, 6))
    done = [UlidRange(first, hole), UlidRange(back, last)]
    advance(source, Nowhere(), CONSUMER, FEED, dict.fromkeys((0, 1), done), by=BY)
    remedy = troubles()["window-missing"]["remedy"]
    assert partitions(remedy) == [START + HOUR, START + 2 * HOUR]
