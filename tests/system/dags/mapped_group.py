# SPDX-License-Identifier: Apache-2.0
"""A group of plan, job and finish, mapped over feeds; the job runs in its task, without Spark."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from airflow.sdk import DAG, task, task_group
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import ExportJob, changefeed_export_group

PATH = "/tmp/changefeed-export"
FEEDS = ["nyc.Flight", "nyc.Weather"]


@task
def submit(spec_uri: str, rows: int) -> dict[str, Any]:
    """Run the job of a spec, and return how many rows it was told of, and has written."""
    from airflow_changefeed import ChangefeedHook
    from airflow_changefeed.export.job_spec import JobConnection
    from airflow_changefeed.spark.export_job import run_spec
    from tests.unit.airflow.fakes import LocalSpark

    connection = JobConnection(ChangefeedHook().source().describe())
    result = run_spec(LocalSpark, spec_uri, connection, lambda line: None)  # type: ignore[arg-type]
    return {"told": rows, "written": result.rows}


def start(job: ExportJob) -> None:
    """Make the task that runs the job."""
    submit(job.spec_uri, job.rows)


with DAG(
    "mapped_group",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
):

    @task_group
    def each(feed: str) -> None:
        """Export one feed."""
        changefeed_export_group(
            submit=start,
            feed=feed,
            path=PATH,
            program_path=PATH,
            consumer="warehouse",
            unit=timedelta(hours=1),
        )

    each.expand(feed=FEEDS)
