# SPDX-License-Identifier: Apache-2.0
"""What ``make ui`` does: load once, start Airflow, have a week of windows exported, stay until Ctrl-C."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from airflow_changefeed.output.store import ExportStore
from tests.browser.shop import Shop
from tests.integration.contract.sqlite_engine import SqliteEngine
from tests.system.airflow_home import AirflowHome
from tests.system.airflow_settings import PROJECT
from tests.system.demo.flights import FEED, SHARDS
from tests.system.demo.load import load
from tests.system.demo.surroundings import DAILY, FOLLOW, HOURLY, Surroundings
from tests.system.processes import FileLock, HomeError, is_hung_up
from tests.system.ui.port import check_free
from tests.system.ui.telemetry import Telemetry

FOLDER = PROJECT / ".airflow" / "ui"
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
BEGIN = datetime(2013, 1, 1, tzinfo=timezone.utc)
END = BEGIN + 7 * DAY
WINDOWS = (END - BEGIN) // HOUR
POLL_SECONDS = 3.0
#: Connection of a database that needs somebody.
SHOP = "shop"
#: What Airflow reads in its home.
HOME_FILES = {
    "config/airflow_local_settings.py": "from tests.system.ui.policy import dag_policy as dag_policy\n",
    "plugins/past.py": "from tests.system.ui.timetable import PastPlugin as PastPlugin\n",
}


@dataclass(frozen=True)
class Part:
    """
    A part of the week, exported by one backfill.

    :param start: of the first run's interval.
    :param end: of the last run's interval.
    :param length: of each run's interval.
    :param parallel: runs at a time.
    """

    dag_id: str
    start: datetime
    end: datetime
    length: timedelta
    parallel: int

    @property
    def last(self) -> datetime:
        """Logical date of the last run."""
        return self.end - self.length


# A run costs much more than a window. 168 hourly runs would take a quarter of an hour on two cores: so the
# week is backfilled by days, as one would do it, in one Spark job each, and only its last day by hours.
WEEK = (
    Part(DAILY, BEGIN, END - DAY, DAY, parallel=2),
    Part(HOURLY, END - DAY, END, HOUR, parallel=6),
)


class Ui:
    """
    An Airflow to look around in.

    Everything lies in one folder and is found again by the next start: the feed, the export, and in Airflow
    whatever the user did.

    :param folder: of all of it.
    :param port: of the UI on 127.0.0.1.
    """

    def __init__(self, folder: Path = FOLDER, port: int = 8080, console: Console | None = None) -> None:
        self.surroundings = Surroundings(folder.resolve())
        self.port = port
        # A pipe has no width of its own, and the default would break addresses.
        self.console = console or Console(width=None if sys.stdout.isatty() else 120, highlight=False)
        self.is_terminal = self.console.is_terminal  # asked now: a closed one denies it
        self.telemetry = Telemetry(self.surroundings.folder)
        self.home = self._home()
        self._lock = FileLock(folder.with_name(f"{folder.name}.lock"), note=f"({self.home.url})")

    def run(self) -> None:
        """
        Open the UI, and return when Ctrl-C was pressed in it and all processes are ended.

        :raises HomeError: the port is taken, another one runs in this folder, or a process of Airflow died.
        :raises KeyboardInterrupt: Ctrl-C before the UI was open; all processes are ended.
        """
        self._lock_folder()
        try:
            # A start that was killed may have left an Airflow, which would hold the port.
            self._home().stop()
            check_free(self.port)
            self._load_once()
            self._write_home_files()
            self.telemetry.start()
            self.console.print("Starting Airflow")
            with self.home:
                self._equip()
                self.console.print(f"\nAirflow's UI is open: [bold]{self.home.url}[/] (no password)\n")
                try:
                    self._export_week()
                    self._stay()
                except KeyboardInterrupt:
                    self.console.print("\nStopping Airflow")
            self.console.print("Stopped. make ui opens it again as you left it, make clean removes it.")
        finally:
            self.telemetry.close()
            self._lock.release()

    # -- before Airflow runs -------------------------------------------------------------------------------

    def _home(self) -> AirflowHome:
        env = {"AIRFLOW__CHANGEFEED__PAGE_CONNECTIONS": SHOP, **self.telemetry.env}
        return self.surroundings.home(fresh=False, port=self.port, env=env)

    def _lock_folder(self) -> None:
        try:
            self._lock.acquire()
        except HomeError as error:
            raise HomeError(
                f"{error} It is another make ui in this clone: use its address, or press Ctrl-C there."
            ) from None

    def _load_once(self) -> None:
        """Load the flights, unless an earlier start has: the folder gets its name when all are in it."""
        data = self.surroundings.database.parent
        if data.exists():
            return
        unfinished = Surroundings(data.with_name("loading"))
        shutil.rmtree(unfinished.folder, ignore_errors=True)
        self.console.print("Loading 336,776 flights into a feed (only the first time)")
        with unfinished.engine.made():
            loaded = load(unfinished.engine)
        lake = data.with_name(SHOP)
        shutil.rmtree(lake, ignore_errors=True)
        Shop(SqliteEngine(str(unfinished.database.with_name(f"{SHOP}.db"))), SHOP, lake).make()
        unfinished.database.parent.rename(data)
        unfinished.folder.rmdir()
        self.console.print(f"  {loaded.rows:,} events in {loaded.seconds:.1f} s")

    def _write_home_files(self) -> None:
        self.surroundings.write_dags()
        for name, text in HOME_FILES.items():
            path = self.home.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    # -- while Airflow runs --------------------------------------------------------------------------------

    def _equip(self) -> None:
        """Add the connections and wait for the DAGs."""
        shop = {"conn_type": "sqlite", "host": str(self.surroundings.database.with_name(f"{SHOP}.db"))}
        for conn_id, connection in (self.surroundings.connections | {SHOP: shop}).items():
            self.home.api.add_connection(conn_id, connection)
        self.home.wait_for_dags(DAILY, HOURLY, FOLLOW)

    def _export_week(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, refresh_per_second=2) as progress:
            bar = progress.add_task("complete hourly windows", total=WINDOWS)
            for part in WEEK:
                self._begin(part)
                while self._goes_on(part):
                    progress.update(bar, completed=self._complete())
                    self._pause()
            progress.update(bar, completed=self._complete())

    def _stay(self) -> None:
        """Say what there is to see, and watch Airflow."""
        self._show()
        while True:
            self._pause()

    def _begin(self, part: Part) -> None:
        """Start the backfill, unless an earlier start has: what somebody did to its runs stays."""
        if not any(backfill.from_date == part.start for backfill in self.home.api.backfills(part.dag_id)):
            self.home.api.create_backfill(part.dag_id, part.start, part.last, max_active_runs=part.parallel)

    def _goes_on(self, part: Part) -> bool:
        runs = self.home.api.runs(part.dag_id)
        return any(
            not run.is_finished
            for run in runs
            if run.logical_date and part.start <= run.logical_date <= part.last
        )

    def _complete(self) -> int:
        """Count the windows of the week that are complete in all shards."""
        store = ExportStore(str(self.surroundings.export), FEED)
        return min(len(store.units(shard, BEGIN, END)) for shard in SHARDS.values())

    def _pause(self) -> None:
        self.home.check()
        if self.is_terminal and is_hung_up(sys.stdout.fileno()):
            sys.exit(128 + signal.SIGHUP)
        time.sleep(POLL_SECONDS)

    def _reported(self) -> str:
        """Say what has been sent to others."""
        files = {
            self.telemetry.metrics: "metrics that a server of StatsD has received",
            self.telemetry.lineage: "lineage, events of OpenLineage",
        }
        return "".join(f"  {path}\n      {what}\n" for path, what in files.items() if path.exists())

    def _show(self) -> None:
        dags, count = f"{self.home.url}/dags", self._complete()
        if count < WINDOWS:
            self.console.print(f"[red]{WINDOWS - count} windows are missing: see the runs that failed[/]")
        self.console.print(
            f"""
{count} hourly windows from {BEGIN:%Y-%m-%d} on are complete. To look at:
  {dags}/{DAILY}
      six days: a run and a Spark job for each
  {dags}/{HOURLY}
      the seventh day: a run for each hour
  {dags}/{FOLLOW}
      what runs because windows are complete
  {self.home.url}/variables
      where the cursors stand
  {self.home.url}/plugin/changefeed
      the feeds: the calendar of each export, and in the connection {SHOP} a gap and dead letters to resolve
  {self.surroundings.export}
      the files
{self._reported()}
To start a backfill of two days more: open {DAILY} (above),
choose Trigger, Backfill, from {END:%Y/%m/%d} to {END + DAY:%Y/%m/%d}, and Run Backfill.

Ctrl-C stops Airflow.
""",
            soft_wrap=True,
        )
