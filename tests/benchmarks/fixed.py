# SPDX-License-Identifier: Apache-2.0
"""What costs the same however few rows there are: a job, an empty window, a poll, a DAG file."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.benchmarks import orders
from tests.benchmarks.figures import Chapter, Figure, Target, figure_of
from tests.benchmarks.polls import poll_figures
from tests.benchmarks.watch import Reading, watch
from tests.integration.spark.connect import connect_server
from tests.system.airflow_settings import AirflowSettings

ROUNDS = 3
PARSES = 7
FEEDS = (2_000, 2_000_000)
_EMPTY = """
from airflow.sdk import DAG

with DAG("empty", schedule=None):
    pass
"""
_FULL = """
from airflow.sdk import DAG
from airflow_changefeed import ChangefeedSensor, ChangefeedToParquetOperator

with DAG("full", schedule=None):
    names = {"feed": "shop.Order", "consumer": "warehouse"}
    ChangefeedSensor(task_id="wait", **names) >> ChangefeedToParquetOperator(
        task_id="export", path="/out", **names
    )
"""


def run(folder: Path) -> Chapter:
    """Measure each in processes of its own, in turn; medians count."""
    jobs, (short, long) = _jobs(folder), _polls(folder)
    empty, full = _parses(folder)
    return Chapter(
        "Fixed costs",
        [*jobs.values(), short, long, empty, full],
        [
            Target(
                "export of one row, time of the script's", jobs["one"].seconds / jobs["script"].seconds, 1.3
            ),
            Target("one row by a warm Spark Connect server, in the task, s", jobs["connect"].seconds, 6),
            Target("empty window in the task, s", jobs["empty"].seconds, 2),
            Target("poll of 2,000,000 rows, time of one at 2,000", long.seconds / short.seconds, 1.25),
            Target("DAG file with the package, s beyond an empty one", full.seconds - empty.seconds, 0.3),
        ],
    )


def _jobs(folder: Path) -> dict[str, Figure]:
    database = folder / "one.db"
    orders.load(database, 1)
    ways = ("script", "one", "connect", "empty", "local")
    readings: dict[str, list[Reading]] = {way: [] for way in ways}
    with connect_server(folder) as port:
        # The first task warms the server up.
        for way in ("connect", *ROUNDS * ways):
            readings[way].append(_job(way, folder, database, port))
    readings["connect"] = readings["connect"][1:]
    what = {
        "script": "spark-submit: session and a small mapInArrow",
        "one": "task: one row, by Spark",
        "connect": "task: one row, by a warm Spark Connect server",
        "local": "task: one row, local_below",
        "empty": "task: empty window",
    }
    return {way: figure_of(what[way], 0, own) for way, own in readings.items()}


def _job(way: str, folder: Path, database: Path, port: int) -> Reading:
    spark: dict[str, Any] = {"conn_type": "spark", "host": "local[2]"}
    if way == "connect":
        spark = {"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": port}
    with tempfile.TemporaryDirectory(dir=folder) as home:
        arguments = [way] if way == "script" else [way, str(Path(home) / "out")]
        environment = _environment(Path(home), database, spark)
        reading = watch("tests.benchmarks.task_child", arguments, environment=environment)[way]
    if reading.result.get("rows", 0) != (way in ("one", "connect", "local")):
        raise RuntimeError(f"{way} exported {reading.result['rows']} rows")
    return reading


def _environment(
    home: Path, database: Path, spark: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, str]:
    return AirflowSettings(
        home=home,
        dags=home,
        url="http://127.0.0.1:1",
        sqlalchemy_url=f"sqlite:///{home}/airflow.db",
        secret="signs nothing here",
        connections={
            "changefeed_default": {"conn_type": "sqlite", "host": str(database)},
            "spark_default": dict(spark),
        },
    ).environment()


def _polls(folder: Path) -> list[Figure]:
    feeds: list[tuple[FeedSource, str, int]] = []
    for rows in FEEDS:
        database = folder / f"{rows}.db"
        if not database.exists():
            orders.load(database, rows)
        feeds.append((SqliteFeedSource(str(database)), orders.FEED, rows))
    return poll_figures(feeds)


def _parses(folder: Path) -> tuple[Figure, Figure]:
    readings: dict[str, list[Reading]] = {"empty": [], "full": []}
    for _ in range(PARSES):
        for name, text in (("empty", _EMPTY), ("full", _FULL)):
            with tempfile.TemporaryDirectory(dir=folder) as home:
                file = Path(home) / f"{name}.py"
                file.write_text(text)
                environment = _environment(Path(home), folder / "one.db")
                reading = watch("tests.benchmarks.parse_child", [str(file)], environment=environment)["parse"]
            if reading.result != {"dags": 1, "errors": {}}:
                raise RuntimeError(f"{name}: {json.dumps(reading.result)}")
            readings[name].append(reading)
    return (
        figure_of("DAG file: empty", 0, readings["empty"]),
        figure_of("DAG file: sensor and operator", 0, readings["full"]),
    )
