# SPDX-License-Identifier: Apache-2.0
"""
The demo's steps: load, start Airflow, backfill, kill a task, wait, compare, query, stop.

All the time somebody writes a table that is captured; in the end its changes are exported and folded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from airflow_changefeed.core.cursor import CursorDocument
from airflow_changefeed.core.values import format_time
from airflow_changefeed.core.window import Window
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources import open_source
from tests.system.airflow_api import DagRun
from tests.system.airflow_settings import PROJECT
from tests.system.demo import captured, report
from tests.system.demo.board import CAPTURE, Board
from tests.system.demo.captured import MINUTE, whole
from tests.system.demo.engine import Engine
from tests.system.demo.flights import BOARD, FEED, SHARDS
from tests.system.demo.load import Loaded, load
from tests.system.demo.surroundings import CAPTURING, CONSUMER, DAILY, HOURLY, Surroundings
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
        self.surroundings = surroundings = Surroundings(folder, server)
        self.folder = folder
        self.engine = surroundings.engine
        self.export = surroundings.export
        self.folded = surroundings.folded
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
            for left in (self.folder / "data", self.export, self.folded):
                shutil.rmtree(left, ignore_errors=True)
            self._tell(f"Making a new feed: {self.engine.place} (that of an earlier demo is dropped)")
            with self.engine.made():
                return self._run(begun)
        finally:
            lock.release()

    def _run(self, begun: float) -> bool:
        loaded = self._load()
        # Captured events happen now, and nobody waits for an hour to end.
        self.surroundings.write_dags(UNIT=MINUTE)
        with self._board() as board, self.home:
            self.console.print(
                f"Airflow is up at {self.home.url}, healthy after {time.monotonic() - begun:.0f} s"
            )
            self.home.wait_for_dags(DAILY, HOURLY, CAPTURING)
            export_begun = time.monotonic()
            runs = self._export()
            seconds = time.monotonic() - export_begun
            run, window = self._export_board(board)
            cursors = self._cursors()
            for dag_id in (DAILY, HOURLY):
                for task in self.home.api.task_instances(dag_id):
                    if task.task_id == TASK:
                        self.tries[task.run_id] = task.try_number
        is_captured = self._compare_board(board, run, window)
        return self._compare(loaded, runs, seconds, cursors, is_captured)

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

    @contextmanager
    def _board(self) -> Iterator[Board]:
        """Have somebody write the board while the block runs."""
        board = Board(self.engine)
        board.enable()
        board.start()
        self.console.print(
            f"From now on somebody writes the board {BOARD}: flights are scheduled, depart, arrive or are "
            f"cancelled. Triggers record it, as the feed {CAPTURE}; they know nothing of the {board.before} "
            "flights that it had before"
        )
        try:
            base = captured.take_base(self.engine.description, self.folded)
            self.console.print(
                f"  A snapshot, taken while it is written: {base.rows} rows in {len(base.files)} ranges, "
                f"from {format_time(base.begin)} to {format_time(base.exact_from)}"
            )
            yield board
        finally:
            board.stop()

    def _export_board(self, board: Board) -> tuple[DagRun | None, Window]:
        """Stop the writer, wait for his last minute to end, and export and fold all of his minutes."""
        board.stop()
        window = whole(board.begun, self._now())
        self.console.print(
            f"The board's writer committed {board.transactions:,} transactions with {board.made.total():,} "
            f"changes, and rolled {board.rolled_back:,} back. Waiting for the minute to end"
        )
        self.home.wait_for("the minute's end", lambda: self._now() >= window.end, timeout=90)
        conf = {"window_start": format_time(window.start), "window_end": format_time(window.end)}
        self.console.print(
            f"Trigger of {CAPTURING} with the window {conf['window_start']} to {conf['window_end']}, in "
            "units of one minute"
        )
        self.home.api.trigger(CAPTURING, conf=conf)

        def ended() -> DagRun | None:
            runs = self._runs(CAPTURING, 1)
            return runs[0] if runs and runs[0].is_finished else None

        return self.home.wait_for(f"the run of {CAPTURING}", ended, timeout=PATIENCE_SECONDS), window

    def _now(self) -> datetime:
        with closing(open_source(self.engine.description)) as source:
            return source.now()

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

    def _compare_board(self, board: Board, run: DagRun | None, window: Window) -> bool:
        state = "no run" if run is None else run.state
        self.console.print(f"Run of {CAPTURING}: {state}")
        if state != "success":
            return False
        result = captured.check(self.export, self.folded, window, board.made, self.engine.board_rows())
        captured.show(self.console, result)
        return result.is_good

    def _compare(
        self, loaded: Loaded, runs: list[DagRun], seconds: float, cursors: str | None, is_captured: bool
    ) -> bool:
        windows = Window(BEGIN, BEGIN + DAYS * DAY + HOUR).cut(HOUR)
        results = report.check(ExportStore(str(self.export), FEED), windows, self.engine.schema)
        report.show(self.console, results)
        rows = sum(result.exported or 0 for result in results)
        for run in runs:
            self.console.print(f"Run {run.run_id}: {run.state}, {self.tries[run.run_id]} tries")
        self.console.print(
            f"{rows:,} rows in {seconds:.0f} s of Airflow ({rows / seconds:,.0f} rows/s with {DAYS} "
            f"Spark starts and a killed task); {loaded.rows:,} events stay in the feed for you to export"
        )
        is_moved = self._show_cursors(cursors, windows[-1])
        self.console.print(f"Files: {self.export}")
        self._tell(f"To remove the feed and the files: {self.engine.removal}")
        self._query()
        is_good = (
            is_moved
            and is_captured
            and all(result.is_good for result in results)
            and {run.state for run in runs} == {"success"}
        )
        self.console.print(
            "[bold green]Every window is complete: rows exported = rows expected, and the board = its fold[/]"
            if is_good
            else "[bold red]Something is missing or different: see above[/]"
        )
        return is_good

    def _cursors(self) -> str | None:
        """Return the consumer's Variable; its name begins with the database's identity."""
        variables = self.home.api.variables()
        found = [text for key, text in variables.items() if key.endswith(f":{CONSUMER}:{FEED}")]
        return found[0] if len(found) == 1 else None

    def _show_cursors(self, cursors: str | None, last: Window) -> bool:
        key = f"changefeed:<database>:{CONSUMER}:{FEED}"
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
