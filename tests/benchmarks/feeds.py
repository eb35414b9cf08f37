# SPDX-License-Identifier: Apache-2.0
"""An hour of two hundred feeds by one job, planned and written in one process."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

from airflow_changefeed.core.values import to_milliseconds
from airflow_changefeed.core.window import Window
from airflow_changefeed.export.job_spec import JobConnection, write_job, write_spec
from airflow_changefeed.export.planner import make_plan
from airflow_changefeed.export.request import ExportRequest
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.spark.export_job import run_spec
from tests.benchmarks.figures import Chapter, Figure, Target
from tests.benchmarks.spark_ways import spark_session, warm_up

FEEDS, EVENTS = 200, 60
START = datetime(2013, 1, 1, tzinfo=timezone.utc)
HOUR = Window(START, START + timedelta(hours=1))


def run(folder: Path) -> Chapter:
    """Plan all feeds, then run their job in a warm session."""
    source, names = _load(folder / "feeds.db")
    output = str(folder / "feeds")
    warm_up(spark_session())
    began, cpu = time.perf_counter(), time.process_time()
    specs = []
    with source.connected():
        for name in names:
            store = ExportStore(output, name)
            request = ExportRequest(name, output, "benchmark", "benchmark/1", windows=[HOUR])
            specs.append(write_spec(store, make_plan(source, store, request)))
    source.close()
    planned, cpu = time.perf_counter(), time.process_time() - cpu
    job = write_job(store, specs)
    result = run_spec(spark_session, job, JobConnection(source.describe()), lambda line: None)
    done = time.perf_counter()
    spark_session().stop()
    if result.rows != FEEDS * EVENTS:
        raise RuntimeError(f"{result.rows} rows, not {FEEDS * EVENTS}")
    return Chapter(
        "Many feeds by one job",
        [
            Figure(f"plan an hour of {FEEDS} feeds", 0, planned - began),
            Figure(f"plan an hour of {FEEDS} feeds, CPU", 0, cpu),
            Figure("their job, in a warm session", result.rows, done - planned),
        ],
        [Target(f"an hour of {FEEDS} feeds, plan and job, seconds", done - began, 10)],
    )


def _load(path: Path) -> tuple[SqliteFeedSource, list[str]]:
    source, names = SqliteFeedSource(str(path)), [f"shop.Table{number}" for number in range(FEEDS)]
    with closing(sqlite3.connect(path)) as connection:
        for name in names:
            connection.execute(f'create table "{name}" (id integer primary key)')
        connection.commit()
        for name in names:
            source.set_up_feed(name)
        for name in names:
            for number in range(EVENTS):
                hint = to_milliseconds(START + number * timedelta(minutes=1))
                connection.execute(f'insert into "{name}" values (?)', (number,))
                connection.execute(
                    f'insert into "changefeed.outbox:{name}" (shard_id, time_hint, id) values (0, ?, ?)',
                    (hint, number),
                )
        connection.commit()
    return source, names
