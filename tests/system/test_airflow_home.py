# SPDX-License-Identifier: Apache-2.0
"""The harness itself: a real Airflow starts, backfills, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import psutil
import pytest

from tests.system.airflow_api import DagRun
from tests.system.airflow_home import AirflowHome
from tests.system.airflow_settings import PROJECT
from tests.system.processes import HomeError, alive, command_line, wait_for

pytestmark = [pytest.mark.ci, pytest.mark.airflow, pytest.mark.xdist_group("airflow home")]

START = datetime(2013, 1, 1, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
DAG_FILE = """
from datetime import datetime, timedelta, timezone
from airflow.sdk import Param, dag, task
from airflow.timetables.interval import CronDataIntervalTimetable

@dag(
    schedule=CronDataIntervalTimetable("@hourly", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    catchup=False,
    params={"speed": Param(1, type="integer"), "window": Param(None, type=["null", "string"])},
)
def tiny():
    @task(retries=1, retry_delay=timedelta(seconds=1))
    def show(params, dag_run, data_interval_start=None, data_interval_end=None, ti=None):
        print("interval", data_interval_start, data_interval_end)
        if params["speed"] == 0 and ti.try_number == 1:
            import subprocess
            subprocess.run(["sleep", "600"])
        return {"start": str(data_interval_start), "end": str(data_interval_end), **params}

    show()

tiny()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirflowHome]:
    """A running home with one DAG, which is checked to leave no process behind."""
    folder = tmp_path_factory.mktemp("home")
    dags = folder / "dags"
    dags.mkdir()
    (dags / "tiny.py").write_text(DAG_FILE)
    home = AirflowHome(folder / "airflow", dags=dags, heartbeat_timeout=6)
    with home:
        home.wait_for_dags("tiny")
        yield home
    left = [command_line(process) for process in home.processes()]
    assert left == []


def test_a_backfill_of_three_hours_makes_three_runs_with_their_data_intervals(home: AirflowHome) -> None:
    """Airflow's own backfill, asked for by REST, runs each hour once, and each task sees its own interval."""
    home.api.create_backfill("tiny", START, START + 2 * HOUR)

    def all_finished() -> list[DagRun]:
        runs = [run for run in home.api.runs("tiny") if run.run_type == "backfill"]
        return runs if all(run.is_finished for run in runs) else []

    runs = home.wait_for("the backfill's runs", all_finished, timeout=60)

    assert [run.state for run in runs] == ["success"] * 3
    intervals = [(run.data_interval_start, run.data_interval_end) for run in runs]
    assert intervals == [(START + i * HOUR, START + (i + 1) * HOUR) for i in range(3)]
    log = home.api.task_log("tiny", runs[1].run_id, "show")
    assert "interval 2013-01-01 01:00:00+00:00 2013-01-01 02:00:00+00:00" in log
    assert home.api.xcom("tiny", runs[2].run_id, "show")["end"] == "2013-01-01 03:00:00+00:00"


def test_a_run_triggered_without_a_logical_date_has_no_interval_but_its_params(home: AirflowHome) -> None:
    """The values of the form's ``params`` arrive in a run of no time at all, too."""
    run = home.api.trigger("tiny", conf={"speed": 7, "window": "2013-01-01T00:00Z/PT1H"})
    home.wait_for("the run", lambda: home.api.run("tiny", run.run_id).is_finished, timeout=60)

    assert (run.logical_date, run.data_interval_start) == (None, None)
    value = home.api.xcom("tiny", run.run_id, "show")
    assert value == {"start": "None", "end": "None", "speed": 7, "window": "2013-01-01T00:00Z/PT1H"}


def test_a_run_triggered_at_a_logical_date_has_the_whole_hour_before_it(home: AirflowHome) -> None:
    """What the form in the UI does by default, with the present time as logical date."""
    run = home.api.trigger("tiny", logical_date=START + 4.25 * HOUR)

    assert (run.data_interval_start, run.data_interval_end) == (START + 3 * HOUR, START + 4 * HOUR)


def test_a_run_can_be_triggered_for_an_explicit_interval(home: AirflowHome) -> None:
    """The REST API takes any interval, whatever the timetable says."""
    run = home.api.trigger("tiny", interval=(START + 5 * HOUR, START + 9 * HOUR))

    assert (run.data_interval_start, run.data_interval_end) == (START + 5 * HOUR, START + 9 * HOUR)


def test_a_task_killed_in_the_middle_is_noticed_and_retried(home: AirflowHome) -> None:
    """``kill_task`` hits the process of that very run, and Airflow runs a second try."""
    run = home.api.trigger("tiny", conf={"speed": 0})
    killed = home.kill_task("tiny", run.run_id, "show", ready=lambda commands: "sleep 600" in commands)
    home.wait_for("the second try", lambda: home.api.run("tiny", run.run_id).is_finished, timeout=60)

    task = home.api.task_instance("tiny", run.run_id, "show")
    assert (killed.try_number, task.try_number, task.state) == (1, 2, "success")
    assert [command_line(child) for child in killed.children] == ["sleep 600"]


STARTER = """
import sys
from pathlib import Path
from tests.system.airflow_home import AirflowHome
AirflowHome(Path(sys.argv[1]), dags=Path(sys.argv[1])).start()
"""


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_home_whose_starter_was_ended_by_a_signal(
    tmp_path: Path, sig: signal.Signals
) -> None:
    """SIGTERM and Ctrl-C clean up, even half-way; after SIGKILL, ``stop`` of the same folder does."""
    home = AirflowHome(tmp_path / "airflow", dags=tmp_path)
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(home.folder)], cwd=PROJECT)
    wait_for("its first Airflow process", home.processes, timeout=60)
    database = psutil.Process(int((home.postgres.data / "postmaster.pid").read_text().split()[0]))
    with pytest.raises(HomeError, match=f"held by process {starter.pid}"):
        home.start()
    starter.send_signal(sig)
    code = starter.wait(timeout=60)

    if sig == signal.SIGKILL:
        home.stop()
    assert code in {128 + sig, -sig}
    assert home.processes() == []
    assert alive([database]) == []


def test_a_start_that_fails_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    """The error carries the end of the log of what failed."""
    nowhere = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql+psycopg2://x@/x?host=/no-such-folder"}
    home = AirflowHome(tmp_path / "airflow", dags=tmp_path, env=nowhere)

    with pytest.raises(HomeError, match=r"(?s)db migrate failed.*no-such-folder"):
        home.start()

    assert home.processes() == []


def test_a_home_refuses_to_wipe_a_folder_that_it_did_not_make(tmp_path: Path) -> None:
    """A fresh start removes only an earlier home."""
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")

    with pytest.raises(HomeError, match="left as it is"):
        AirflowHome(tmp_path, dags=tmp_path).start()

    assert precious.read_text() == "mine"


def test_a_service_that_dies_ends_all_waiting_with_its_log(home: AirflowHome) -> None:
    """Nobody waits for a deadline when the reason is known. The last test: it breaks the home."""
    services = [process for process in home.processes() if "triggerer" in command_line(process)]
    min(services, key=lambda process: process.pid).kill()

    with pytest.raises(HomeError, match=r"(?s)ended with code -9; end of .*\.log"):
        home.wait_for("nothing", lambda: None, timeout=30)
