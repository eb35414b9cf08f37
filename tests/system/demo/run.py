# SPDX-License-Identifier: Apache-2.0
"""The demo's steps: load, start Airflow, backfill, kill a task, wait, compare, query, stop."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from airflow_changefeed.core.cursor import CursorDocument, variable_key
from airflow_changefeed.core.times import format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.export.store import ExportStore
from tests.system.airflow_api import DagRun
from tests.system.airflow_settings import PROJECT
from tests.system.demo import report
from tests.system.demo.engine import Engine
from tests.system.demo.flights import FEED, SHARDS
from tests.system.demo.load import Loaded, load
from tests.system.demo.surroundings import CONSUMER, DAILY, HOURLY, Surroundings
from tests.system.processes import FileLock

FOLDERS = PROJECT / ".airflow"
TASK = "export"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BEGIN = datetime(2013, 1, 1, tzinfo=timezone.utc)
DAYS = 3
PATIENCE_SECONDS = 900.0


class Demo:
    """
    One run of the demo.

    :param folder: for all that it writes; emptied first.
    :param server: where the feed is, if not in this folder.
    """

    def __init__(self, folder: Path, server: Engine | None = None, console: Console | None = None) -> None:
        surroundings = Surroundings(folder, server)
        self.folder = folder
        self.engine = surroundings.engine
        self.export = surroundings.export
        # A pipe has no width of its own, and the default would break the table's lines.
        self.console = console or Console(width=None if sys.stdout.isatty() else 120)
        self.tries: dict[str, int] = {}
        self.home = surroundings.home(
            connections=surroundings.connections,
            # Live, the DAGs would begin with today's last hour, in which nothing flew.
            env={"AIRFLOW__SCHEDULER__USE_JOB_SCHEDULE": "False"},
        )

    def run(self) -> bool:
        """
        Run all steps; whether every window is complete and equal to the data set.

        :raises HomeError: another one runs in this folder.
        :raises DemoError: the feed cannot be made where it should be.
        """
        begun = time.monotonic()
        lock = FileLock(self.folder.with_name(f"{self.folder.name}.lock"))
        lock.acquire()
        try:
            for left in (self.folder / "data", self.export):
                shutil.rmtree(left, ignore_errors=True)
            self._tell(f"Making a new feed: {self.engine.place} (that of an earlier demo is dropped)")
            with self.engine.made():
                return self._run(begun)
        finally:
            lock.release()

    def _run(self, begun: float) -> bool:
        loaded = self._load()
        with self.home:
            self.console.print(
                f"Airflow is up at {self.home.url}, healthy after {time.monotonic() - begun:.0f} s"
            )
            self.home.wait_for_dags(DAILY, HOURLY)
            export_begun = time.monotonic()
            runs = self._export()
            seconds = time.monotonic() - export_begun
            cursors = self.home.api.variables().get(variable_key(CONSUMER, FEED))
            for dag_id in (DAILY, HOURLY):
                for task in self.home.api.task_instances(dag_id):
                    if task.task_id == TASK:
                        self.tries[task.run_id] = task.try_number
        return self._compare(loaded, runs, seconds, cursors)

    # -- the steps -----------------------------------------------------------------------------------------

    def _load(self) -> Loaded:
        self.console.print(
            "Loading 336,776 flights: three writer processes, one for each airport, and a reader"
        )
        loaded = load(self.engine)
        self.console.print(
            f"  {loaded.rows:,} events, each with its outbox row, in {loaded.seconds:.1f} s "
            f"({loaded.rows / loaded.seconds:,.0f} rows/s); the reader saw {loaded.read:,}, each once "
            "and in order"
        )
        return loaded

    def _export(self) -> list[DagRun]:
        """Backfill three days, kill one of the tasks on the way, then export one hour more."""
        api = self.home.api
        backfill = api.create_backfill(DAILY, BEGIN, BEGIN + (DAYS - 1) * DAY, max_active_runs=1)
        self.console.print(
            f"Airflow backfill {backfill.id} of {DAILY}: {DAYS} daily runs cut into units of one hour "
            f"({24 * DAYS} windows, {24 * DAYS * len(SHARDS)} export units)"
        )
        with self._progress() as progress:
            bar = progress.add_task("export units", total=24 * DAYS * len(SHARDS))
            runs = self.home.wait_for("the backfill's runs", lambda: self._runs(DAILY, DAYS), timeout=60)
            self._kill(progress, runs[1])
            runs = self._wait(progress, bar, DAILY, DAYS)
        start = BEGIN + DAYS * DAY
        window = {"window_start": format_time(start), "window_end": format_time(start + HOUR)}
        self.console.print(
            f"Trigger of {HOURLY} with the window {window['window_start']} + 1 h in its params"
        )
        run = api.trigger(HOURLY, conf=window)
        with self._progress() as progress:
            bar = progress.add_task("export units", total=(24 * DAYS + 1) * len(SHARDS))
            return [*runs, *self._wait(progress, bar, HOURLY, 1)] if run else runs

    def _tell(self, text: str) -> None:
        """Print a text that may have brackets, and may be copied."""
        self.console.print(text, markup=False, soft_wrap=True)

    def _progress(self) -> Progress:
        columns = (TextColumn("  {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        return Progress(*columns, console=self.console, refresh_per_second=2)

    def _runs(self, dag_id: str, count: int) -> list[DagRun] | None:
        runs = self.home.api.runs(dag_id)
        return runs if len(runs) == count else None

    def _kill(self, progress: Progress, run: DagRun) -> None:
        killed = self.home.kill_task(DAILY, run.run_id, TASK, timeout=PATIENCE_SECONDS)
        progress.console.print(
            f"  SIGKILL to process {killed.pid}, task {TASK!r} of {run.run_id}, try {killed.try_number}, "
            "while its Spark job was running; Airflow will notice and try again"
        )

    def _wait(self, progress: Progress, bar: object, dag_id: str, count: int) -> list[DagRun]:
        """Wait until all runs are over, showing how many units are complete by now."""
        store = ExportStore(str(self.export), FEED)

        def all_ended() -> list[DagRun] | None:
            units = sum(len(store.units(shard)) for shard in store.shards())
            progress.update(bar, completed=units)
            runs = self._runs(dag_id, count)
            return runs if runs and all(run.is_finished for run in runs) else None

        return self.home.wait_for(f"the runs of {dag_id}", all_ended, timeout=PATIENCE_SECONDS)

    # -- the comparison ------------------------------------------------------------------------------------

    def _compare(self, loaded: Loaded, runs: list[DagRun], seconds: float, cursors: str | None) -> bool:
        windows = Window(BEGIN, BEGIN + DAYS * DAY + HOUR).cut(HOUR)
        results = report.check(ExportStore(str(self.export), FEED), windows, self.engine.schema)
        report.show(self.console, results)
        rows = sum(result.exported or 0 for result in results)
        for run in runs:
            self.console.print(f"Run {run.run_id}: {run.state}, {self.tries[run.run_id]} tries")
        self.console.print(
            f"{rows:,} rows in {seconds:.0f} s of Airflow ({rows / seconds:,.0f} rows/s with {len(runs)} "
            f"Spark starts and a killed task); {loaded.rows:,} events stay in the feed for you to export"
        )
        is_moved = self._show_cursors(cursors, windows[-1])
        self.console.print(f"Files: {self.export}")
        self._tell(f"To remove the feed and the files: {self.engine.removal}")
        self._query()
        is_good = (
            is_moved
            and all(result.is_good for result in results)
            and {run.state for run in runs} == {"success"}
        )
        self.console.print(
            "[bold green]Every window is complete: rows exported = rows expected[/]"
            if is_good
            else "[bold red]Something is missing or different: see above[/]"
        )
        return is_good

    def _show_cursors(self, cursors: str | None, last: Window) -> bool:
        key = variable_key(CONSUMER, FEED)
        if cursors is None:
            self.console.print(f"[bold red]Airflow Variable {key} is missing[/]")
            return False
        document = CursorDocument.from_json(cursors, key=key)
        for shard, cursor in sorted(document.shards.items(), key=lambda item: str(item[0])):
            self.console.print(
                f"Cursor of shard {shard} in Airflow Variable {key}: {cursor.ulid} "
                f"({format_time(cursor.ulid.time)}), resource version {cursor.resource_version}"
            )
        return {cursor.ulid for cursor in document.shards.values()} == {last.range.upto}

    def _query(self) -> None:
        self.console.print("Average departure delay in minutes by scheduled hour, by Spark over the export:")
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(PROJECT)}
        subprocess.run(
            [sys.executable, "-m", "tests.system.demo.query", str(self.export), FEED],
            env=environment,
            check=True,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
        )
