# SPDX-License-Identifier: Apache-2.0
"""A day of hourly windows through Airflow by a warm Spark Connect server, beside tasks that do nothing."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from textwrap import dedent
from typing import Any

from tests.benchmarks import orders
from tests.benchmarks.figures import Chapter, Figure, Target
from tests.integration.spark.connect import connect_server
from tests.system.airflow_home import AirflowHome

RUNS, AT_ONCE, ROUNDS = 24, 2, 2
ROWS = 24_000
_HEAD = """\
from datetime import datetime, timedelta, timezone
from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable
BEGIN = datetime(2013, 6, 1, tzinfo=timezone.utc)
HOURLY = CronDataIntervalTimetable("0 * * * *", "UTC")
"""
_TASKS = {
    "export": """\
        from airflow_changefeed import ChangefeedToParquetOperator

        with DAG("export", schedule=HOURLY, start_date=BEGIN, catchup=False):
            ChangefeedToParquetOperator(
                task_id="export", feed="shop.Order", consumer="day", path={path!r}, unit=timedelta(hours=1)
            )
    """,
    "empty": """\
        from airflow.sdk import task

        with DAG("empty", schedule=HOURLY, start_date=BEGIN, catchup=False):

            @task
            def empty():
                pass

            empty()
    """,
}


def run(folder: Path) -> Chapter:
    """Backfill a day of each, in turn; the first day of exports warms the server up and does not count."""
    database, dags = folder / "day.db", folder / "dags"
    orders.load(database, ROWS, RUNS * (ROUNDS + 1))
    dags.mkdir()
    for name, text in _TASKS.items():
        (dags / f"{name}.py").write_text(_HEAD + dedent(text).format(path=str(folder / "out")))
    seconds: dict[str, list[float]] = {name: [] for name in _TASKS}
    with connect_server(folder) as port:
        connections: dict[str, dict[str, Any]] = {
            "changefeed_default": {"conn_type": "sqlite", "host": str(database)},
            "spark_default": {"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": port},
        }
        # Live, the DAGs would begin with today's last hour.
        env = {"AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False"}
        with AirflowHome(folder / "airflow", dags=dags, connections=connections, env=env) as home:
            home.wait_for_dags(*_TASKS)
            for day in range(ROUNDS + 1):
                for name, own in seconds.items():
                    own.append(_backfill(home, name, day))
    export, empty = (median(own[1:]) for own in seconds.values())
    return Chapter(
        "A day of windows through Airflow",
        [
            Figure(f"{RUNS} hourly windows by a warm Spark Connect server", 0, export),
            Figure(f"{RUNS} tasks that do nothing", 0, empty),
        ],
        [Target(f"{RUNS} hourly windows, time of {RUNS} tasks that do nothing", export / empty, 3)],
    )


def _backfill(home: AirflowHome, dag: str, day: int) -> float:
    """Return how many seconds a backfill of a day takes."""
    first = orders.START + day * timedelta(days=1)
    began = time.perf_counter()
    last = first + (RUNS - 1) * timedelta(hours=1)
    backfill = home.api.create_backfill(dag, first, last, max_active_runs=AT_ONCE)

    def all_ended() -> bool:
        runs = home.api.runs(dag)[day * RUNS :]
        return len(runs) == RUNS and all(run.is_finished for run in runs)

    home.wait_for(f"day {day} of {dag}", all_ended, timeout=900)
    seconds = time.perf_counter() - began
    if bad := [run.run_id for run in home.api.runs(dag) if run.state != "success"]:
        raise RuntimeError(f"{dag}: runs {bad} failed; logs are in {home.folder}")
    # Airflow notices the end later, and takes no other backfill of the DAG before.
    home.wait_for(
        "the end of the backfill", lambda: home.api.backfill(backfill.id).completed_at is not None, timeout=90
    )
    return seconds
