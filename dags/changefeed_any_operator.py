# SPDX-License-Identifier: Apache-2.0
"""
### Export hourly windows by a job that another operator starts.

`plan` says what is to be exported, `submit` starts the job, `finish` reads its receipt and moves the cursor.
Here `submit` is a shell command on the worker. Replace it by the operator of your cluster:
`SparkKubernetesOperator`, `DatabricksSubmitRunOperator`, `EmrAddStepsOperator`, `LivyOperator` and the like.

* Each of the three may be cleared. A job that is started again does what is left.
* An hour without events skips `submit` only.
* The job reads its connection from a secret of the cluster. Here it is a file of mode 0600, with what
  `airflow-changefeed job-connection --conn-id changefeed_default --path /tmp/changefeed-export` prints.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import ExportJob, changefeed_export_group, window_params

CONN_ID = "changefeed_default"
PATH = "/tmp/changefeed-export"
# Whoever can write here runs code with the job's secrets: not those who only write to PATH.
PROGRAM_PATH = "/tmp/changefeed-program"
FEED = "nyc.Flight"
CONSUMER = "warehouse"
CONNECTION_FILE = "/etc/changefeed/connection.json"


def submit(job: ExportJob) -> None:
    """Start the job by a shell."""
    BashOperator(
        task_id="submit",
        bash_command=(
            f"spark-submit --master 'local[*]' --py-files '{job.archive_uri}' "
            f"'{job.job_uri}' --spec '{job.spec_uri}'"
        ),
        env={"CHANGEFEED_CONNECTION_FILE": CONNECTION_FILE},
        append_env=True,
        # One job at a time, however many runs a backfill has.
        max_active_tis_per_dag=1,
    )


with DAG(
    "changefeed_any_operator",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    params=window_params(),
    doc_md=__doc__,
    tags=["changefeed"],
):
    changefeed_export_group(
        submit=submit,
        feed=FEED,
        path=PATH,
        program_path=PROGRAM_PATH,
        consumer=CONSUMER,
        unit=timedelta(hours=1),
        changefeed_conn_id=CONN_ID,
    )
