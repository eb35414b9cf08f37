# SPDX-License-Identifier: Apache-2.0
"""What mends a missing window whose DAG has no schedule to backfill."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.models.backfill import DagNonPeriodicScheduleException, _create_backfill
from airflow.sdk import DAG

from airflow_changefeed import ChangefeedToParquetOperator, window_params
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors.cursors import advance
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.browser.exports import Nowhere
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.page import pause, store_dags
from tests.unit.airflow.test_page_overview import HOUR, begin, troubles

pytestmark = since("3.2", "how Airflow refuses it")

DAG_ID = "page_triggered"
BY = f"{DAG_ID}/a run/export/1"


def test_no_backfill_is_printed_that_airflow_refuses(
    server: None, source: SqliteFeedSource, tmp_path: Path
) -> None:
    """Runs of a DAG without a schedule are triggered with the window as params."""
    with DAG(DAG_ID, schedule=None, start_date=START, params=window_params()) as dag:
        ChangefeedToParquetOperator(
            task_id="export",
            feed=FEED,
            consumer=CONSUMER,
            path=str(tmp_path),
            conn_id="changefeed_default",
            unit=HOUR,
        )
    store_dags(dag)
    pause(DAG_ID, is_paused=False)
    source.drain(FEED)
    begin(source, by=BY)
    source.seal(FEED, START + 6 * HOUR)
    first, hole, back, last = (Ulid.floor(START + hours * HOUR).previous() for hours in (0, 1, 3, 6))
    done = [UlidRange(first, hole), UlidRange(back, last)]
    advance(source, Nowhere(), CONSUMER, FEED, dict.fromkeys((0, 1), done), by=BY)
    with pytest.raises(DagNonPeriodicScheduleException):
        _create_backfill(
            dag_id=DAG_ID,
            from_date=START,
            to_date=START + HOUR,
            max_active_runs=1,
            reverse=False,
            triggering_user_name="ann",
            dag_run_conf=None,
        )
    assert "airflow backfill create" not in troubles()["window-missing"]["remedy"]
