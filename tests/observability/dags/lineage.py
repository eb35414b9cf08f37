# SPDX-License-Identifier: Apache-2.0
"""An hour of a feed, exported by one task and by a group; and one that fails."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG, BaseOperator

from airflow_changefeed import ChangefeedToParquetOperator, changefeed_export_group


class NoJob(BaseOperator):
    """Starts nothing: an hour without events needs no job."""

    def execute(self, context: object) -> None:
        """Do nothing."""


for name, feed in (("lineage", "shop.Order"), ("lineage_fails", "shop.Nothing")):
    with DAG(
        name, schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=timezone.utc), catchup=False
    ) as dag:
        ChangefeedToParquetOperator(
            task_id="export",
            feed=feed,
            path=os.environ["LINEAGE_OUTPUT"],
            path_conn_id="lake",
            consumer="warehouse",
            window_start="2026-01-01T00:00:00Z",
            window_end="2026-01-01T01:00:00Z",
            local_below=100,
        )
        if name == "lineage":
            changefeed_export_group(
                submit=lambda job: NoJob(task_id="submit"),
                group_id="group",
                feed=feed,
                path=os.environ["LINEAGE_OUTPUT"] + "/group",
                path_conn_id="lake",
                program_path=os.environ["LINEAGE_OUTPUT"] + "/program",
                consumer="group",
                window_start="2025-01-01T00:00:00Z",
                window_end="2025-01-01T01:00:00Z",
                wait_timeout=timedelta(0),
            )
    globals()[name] = dag
