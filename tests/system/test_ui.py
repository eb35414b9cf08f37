# SPDX-License-Identifier: Apache-2.0
"""``make ui``: what it refuses before anything is started, what it finds again, and what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources import open_source
from tests.examples import examples, run_example
from tests.system.airflow_api import AirflowApi
from tests.system.airflow_settings import PROJECT
from tests.system.demo.flights import FEED, SHARDS, events_of
from tests.system.demo.surroundings import DAILY, Surroundings
from tests.system.processes import (
    command_line,
    descendants,
    free_port,
    wait_for,
)
from tests.unit.export.flights import Flights, hours

OPEN = "Airflow's UI is open"


@pytest.mark.ci
def test_the_query_of_the_page_counts_the_flights_of_the_seventh_day(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """docs/tutorial/look-around.md reads what hourly windows of the real flights hold."""
    surroundings = Surroundings(tmp_path)
    engine, expected = surroundings.engine, {}
    with engine.made():
        for origin, shard in SHARDS.items():
            day = [event for event in events_of(origin) if event[1][1].startswith("2013-01-07")]
            expected[origin] = len(day)
            with engine.writer(shard) as write:
                write(day)
    source = open_source(engine.description)
    Flights(surroundings.database, source).export(
        ExportStore(str(surroundings.export), FEED), hours(6 * 24, 7 * 24)
    )
    (code,) = examples("tutorial/look-around.md", {".airflow/ui": tmp_path})
    run_example(code, {})
    shown = re.findall(r"(EWR|JFK|LGA) *│ *(\d+) ", capsys.readouterr().out)
    assert {origin: int(count) for origin, count in shown} == expected


def python_of_ui() -> tuple[str, bool]:
    """Return what ``make ui`` takes after ``make observability``, and whether it has its clients."""
    if sys.version_info < (3, 11):
        return sys.executable, False
    return str(PROJECT / ".venv-observability/bin/python"), True


@contextmanager
def started(folder: Path, port: int, python: str = sys.executable) -> Iterator[subprocess.Popen[str]]:
    """``make ui`` in a process of its own, as a terminal starts it: a process group that gets Ctrl-C."""
    process = subprocess.Popen(
        [python, "-m", "tests.system.ui", "--port", str(port), "--folder", str(folder)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # Who runs the tests in the background of a script ignores it, and a child inherits that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - it takes no lock
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def read_until(process: subprocess.Popen[str], words: str) -> None:
    """Read what it prints until a line holds the words."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if words in line:
            return
    raise AssertionError("".join(lines))


def left(folder: Path) -> list[str]:
    """Command lines of what still runs below a folder: Airflow, tasks, Spark, the database."""
    home = Surroundings(folder).home(fresh=False)
    postgres = [process for process in psutil.process_iter() if str(folder) in command_line(process)]
    return [command_line(process) for process in [*home.processes(), *postgres]]


@pytest.mark.ci
@pytest.mark.airflow
def test_ctrl_c_while_loading_ends_the_writers_and_the_next_start_loads_again(tmp_path: Path) -> None:
    """Half a feed is never taken for a whole one."""
    folder = tmp_path / "ui"
    with started(folder, free_port()) as process:
        read_until(process, "Loading")
        writers = wait_for("its writers", lambda: descendants(psutil.Process(process.pid)), timeout=60)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "Traceback" not in output
    psutil.wait_procs(writers, timeout=10)
    assert [writer for writer in writers if writer.is_running()] == []
    assert not Surroundings(folder).database.exists()


def kill_the_triggerer(process: subprocess.Popen[str]) -> str:
    """Let a process of Airflow die, and return what is printed then."""
    found = [
        child for child in descendants(psutil.Process(process.pid)) if "triggerer" in command_line(child)
    ]
    min(found, key=lambda child: child.pid).kill()
    output, _ = process.communicate(timeout=60)
    return output.replace("\n", " ")


def exported_rows(folder: Path) -> list[str]:
    """Return the metrics that a server of StatsD has received of exported rows."""
    lines = (folder / "metrics.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith(f"airflow.changefeed.export.rows,feed={FEED},")]


def exported_to(folder: Path) -> list[str]:
    """Return the folders that events of OpenLineage have as outputs of exports that are done."""
    file = folder / "lineage.jsonl"
    # The last line may still be written.
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
    events = [event for event in map(json.loads, lines) if event["eventType"] == "COMPLETE"]
    return [one["name"] for event in events for one in event["outputs"] if one["name"].endswith(FEED)]


@pytest.mark.nightly
@pytest.mark.airflow
def test_a_second_start_finds_what_the_first_has_done_and_every_end_leaves_nothing(tmp_path: Path) -> None:
    """
    Ctrl-C while the week begins ends all with code 0; the next start neither loads nor backfills again. A
    process of Airflow that dies ends all, too, and is named with the end of its log. Until then metrics and
    lineage are in their files.
    """
    folder, port = tmp_path / "ui", free_port()
    python, has_clients = python_of_ui()
    api = AirflowApi(f"http://127.0.0.1:{port}")
    with started(folder, port, python) as process:
        read_until(process, OPEN)
        api.login()
        wait_for("the week's first backfill", lambda: api.backfills(DAILY), timeout=60)
        if has_clients:
            wait_for("the metrics of an export", lambda: exported_rows(folder), timeout=600)
            wait_for("the lineage of an export", lambda: exported_to(folder), timeout=60)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert (process.returncode, left(folder)) == (0, []), output
    loaded = Surroundings(folder).database.stat().st_ino

    with started(folder, port, python) as process:
        read_until(process, OPEN)
        api.login()
        assert [backfill.id for backfill in api.backfills(DAILY)] == [1]
        output = kill_the_triggerer(process)
    assert (process.returncode, left(folder)) == (1, [])
    assert "make ui: triggerer ended with code -9; end of" in output
    assert Surroundings(folder).database.stat().st_ino == loaded
    api.close()
