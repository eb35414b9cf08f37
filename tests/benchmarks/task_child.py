# SPDX-License-Identifier: Apache-2.0
"""
What a task does, in a process of its own as Airflow's worker is one.

``python -m tests.benchmarks.task_child one|connect|empty|local OUTPUT``: exports the hour in which the one
event lies, by Spark or in the task, or one without events. ``python -m tests.benchmarks.task_child script``:
submits :mod:`tests.benchmarks.small_job`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from tests.benchmarks.orders import FEED, START
from tests.benchmarks.watch import PROJECT, measured

HOUR = timedelta(hours=1)


def script() -> None:
    """Submit the small job as the operator submits its own."""
    command = ["spark-submit", "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    with measured("script"):
        job = [*command, str(PROJECT / "tests" / "benchmarks" / "small_job.py")]
        subprocess.run(job, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def task(way: str, output: str) -> None:
    """Run the operator in a task's surroundings; only the making of Airflow's database does not count."""
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"
    from airflow.utils.db import initdb

    from airflow_changefeed.transfers.changefeed_to_parquet import ChangefeedToParquetOperator
    from tests.unit.airflow.fakes import OutletEvents

    initdb()
    start = START if way != "empty" else START - HOUR
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="export", try_number=1, map_index=-1)
    context: Any = {
        "ti": ti,
        "outlet_events": OutletEvents(()),
        "data_interval_start": start,
        "data_interval_end": start + HOUR,
    }
    operator = ChangefeedToParquetOperator(
        task_id="export",
        feed=FEED,
        path=output,
        consumer="benchmark",
        unit=HOUR,
        local_below=100 if way == "local" else 0,
    )
    with measured(way) as result:
        result["rows"] = operator.execute(context)["rows"]


if __name__ == "__main__":
    if sys.argv[1] == "script":
        script()
    else:
        task(sys.argv[1], sys.argv[2])
