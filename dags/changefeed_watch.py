# SPDX-License-Identifier: Apache-2.0
"""
### Notice that an export or a consumer has stopped.

Every ten minutes `watch` looks at all consumers of all feeds of a connection. It fails if the frontier of one
is older than two hours, with the reason: its DAG is paused, a run failed, a window is missing, a process
holds its lease. A feed that cannot be read does not hide the others.

* It is paused until you have set `MAX_AGE`, which must be longer than the longest interval of an export's
  schedule and the time that a run takes.
* Add `on_failure_callback` to send the reason to somebody, for example by `ChangefeedFreshnessNotifier`.
* A scheduler that is dead stops this DAG as well. Let cron run
  `airflow-changefeed status --conn-id changefeed_default --max-age 2h`, too.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG

from airflow_changefeed import ChangefeedFreshnessOperator

CONN_ID = "changefeed_default"
MAX_AGE = timedelta(hours=2)

with DAG(
    "changefeed_watch",
    schedule="*/10 * * * *",
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    max_active_runs=1,
    is_paused_upon_creation=True,
    # A retry is for a database that does not answer; a consumer that is late fails the task at once.
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1)},
    doc_md=__doc__,
    tags=["changefeed"],
):
    ChangefeedFreshnessOperator(task_id="watch", max_age=MAX_AGE, changefeed_conn_id=CONN_ID)
