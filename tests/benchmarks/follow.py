# SPDX-License-Identifier: Apache-2.0
"""How soon after a window is complete the DAGs start that follow it, through a real Airflow."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from textwrap import dedent

from airflow_changefeed.core.window import Window
from airflow_changefeed.output.read import units_and_files
from airflow_changefeed.output.store import ExportStore
from tests.benchmarks import orders
from tests.benchmarks.figures import Chapter, Figure
from tests.system.airflow_home import AirflowHome

ROUNDS, ROWS = 12, 12_000
HOUR = timedelta(hours=1)
FEED = "shop.Order"
_WAYS = {
    "by_event": "by the asset of the export",
    "by_partition": "by a partition of the asset of its windows",
}
_DAGS = """\
    from datetime import datetime, timedelta, timezone
    from airflow.sdk import DAG, PartitionedAssetTimetable, task
    from airflow_changefeed import (
        ChangefeedToParquetOperator, changefeed_asset, changefeed_windows, window_params
    )

    FEED, PATH = {feed!r}, {path!r}

    @task
    def follow():
        pass

    with DAG("export", schedule=None, params=window_params()):
        ChangefeedToParquetOperator(
            task_id="export", feed=FEED, consumer="c", path=PATH, unit=timedelta(hours=1), local_below=10_000
        )
    with DAG("by_event", schedule=[changefeed_asset(FEED, PATH)]):
        follow()
    with DAG("by_partition", schedule=PartitionedAssetTimetable(assets=changefeed_windows(FEED, PATH))):
        follow()
"""


def run(folder: Path) -> Chapter:
    """Export hours one after the other; each is followed in both ways. The first does not count."""
    database, dags, path = folder / "follow.db", folder / "dags", str(folder / "out")
    orders.load(database, ROWS, ROUNDS + 1)
    dags.mkdir()
    (dags / "follow.py").write_text(dedent(_DAGS).format(feed=FEED, path=path))
    connections = {"changefeed_default": {"conn_type": "sqlite", "host": str(database)}}
    store = ExportStore(path, FEED)
    since_begin: dict[str, list[float]] = {name: [] for name in _WAYS}
    since_commit: dict[str, list[float]] = {name: [] for name in _WAYS}
    with AirflowHome(folder / "airflow", dags=dags, connections=connections) as home:
        home.wait_for_dags("export", *_WAYS)
        for number in range(ROUNDS + 1):
            window = Window(orders.START + number * HOUR, orders.START + (number + 1) * HOUR)
            begun = _export(home, window)
            committed = max(unit.made_at for unit, _ in units_and_files(store, window.start, window.end))
            for name in _WAYS:
                started = _started(home, name, number + 1)
                since_begin[name].append((started - begun).total_seconds())
                since_commit[name].append((started - committed).total_seconds())
    return Chapter(
        "Following an export",
        [
            figure
            for name, words in _WAYS.items()
            for figure in (
                _figure(f"from the commit to the follower's task, {words}", since_commit[name][1:]),
                _figure(f"from the start of the export's task, which seals, {words}", since_begin[name][1:]),
            )
        ],
        [],
    )


def _figure(what: str, seconds: list[float]) -> Figure:
    return Figure(what, 0, median(seconds), span=(min(seconds), max(seconds)))


def _export(home: AirflowHome, window: Window) -> datetime:
    """Export a window, and return when the task began, which seals it first."""
    conf = {"window_start": window.start.isoformat(), "window_end": window.end.isoformat()}
    made = home.api.trigger("export", conf=conf)
    home.wait_for("the export", lambda: home.api.run("export", made.run_id).state == "success", timeout=120)
    begun = home.api.task_instance("export", made.run_id, "export").start_date
    assert begun is not None
    return begun


def _started(home: AirflowHome, dag: str, runs: int) -> datetime:
    """Wait until a DAG has run so often, and return when the newest run's task began."""

    def all_ran() -> bool:
        return sum(run.is_finished for run in home.api.runs(dag)) == runs

    home.wait_for(f"{runs} runs of {dag}", all_ran, timeout=120)
    return max(task.start_date for task in home.api.task_instances(dag) if task.start_date is not None)
