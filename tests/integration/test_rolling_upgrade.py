# SPDX-License-Identifier: Apache-2.0
"""Workers of an older version and of this one, on one output and one database at the same time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from airflow_changefeed import export_dataset, verify_export
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.tools.changelog import PROJECT
from tests.tools.released.place import Place, versions
from tests.tools.released.scenario import FEED, HOUR, START, begin, write_orders
from tests.tools.released.write import commit_of

pytestmark = [pytest.mark.nightly, pytest.mark.races, pytest.mark.airflow]
#: Hours that both versions export, all of them, each in an order of its own.
HOURS = 12
ROUNDS = int(os.environ.get("CHANGEFEED_ROLLING_ROUNDS", "5"))
#: Folder of an older version's package, in place of the one that the fixtures name.
VARIABLE = "CHANGEFEED_TEST_OLD"


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the package of the newest release; before the first one, that of the commit in the fixtures."""
    if VARIABLE in os.environ:
        return Path(os.environ[VARIABLE])
    folder = tmp_path_factory.mktemp("old")
    commit = commit_of(versions()[-1])
    archive = subprocess.run(
        ["git", "archive", commit, "airflow_changefeed"], cwd=PROJECT, capture_output=True, check=False
    )
    assert archive.returncode == 0, f"{commit} is not in this clone: git fetch --unshallow, or set {VARIABLE}"
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Give an Airflow whose Variables all workers share, as its environment."""
    named = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW_")}
    named |= {
        "AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow")),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "_AIRFLOW_PROCESS_CONTEXT": "server",
    }
    code = "from airflow.utils.db import initdb; initdb()"
    subprocess.run([sys.executable, "-c", code], env=named, check=True, capture_output=True, timeout=300)
    return named


class Worker:
    """
    A process of one version.

    :param package: folder of its package.
    """

    def __init__(self, package: Path, place: Place, name: str, seed: int, home: dict[str, str]) -> None:
        self.package = package
        path = os.pathsep.join((str(package), str(PROJECT)))
        self._command = [sys.executable, "-m", "tests.tools.released.worker", str(place.root), name, "0"]
        self._command += [str(HOURS), str(seed)]
        self._environment = home | {"PYTHONPATH": path}
        self._folder = place.root
        self.start()

    def start(self) -> None:
        """Start it, also after a kill."""
        self.process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        # Airflow's own lines come before.
        while (line := self.process.stdout.readline()) and "airflow_changefeed" not in line:
            pass
        assert line.startswith(str(self.package)), line or self.process.communicate()[1][-2000:]

    def kill(self) -> None:
        """Kill it as the system does."""
        self.process.kill()
        self.process.communicate()

    def end(self) -> None:
        """Wait until it has exported everything."""
        _, errors = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, errors[-3000:]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", ["parquet", "delta"])
@pytest.mark.parametrize("number", range(ROUNDS))
def test_old_and_new_workers_export_one_feed(
    tmp_path: Path, old: Path, home: dict[str, str], name: str, number: int
) -> None:
    """Each event is in the export once, whoever was killed; cursor, manifests and table agree."""
    place, chance = Place(tmp_path), random.Random(number)
    begin(place)
    write_orders(place, 3, HOURS)
    workers = [Worker(package, place, name, number, home) for package in (old, PROJECT)]
    for _ in range(3):
        time.sleep(chance.uniform(0.2, 4))
        one = chance.choice(workers)
        one.kill()
        one.start()
    for worker in workers:
        worker.end()
    found = export_dataset(place.lake(name), FEED).to_table(columns=["id"])["id"].to_pylist()
    assert sorted(found) == list(range(2 * HOURS))
    source = SqliteFeedSource(str(place.database))
    assert verify_export(place.lake(name), FEED, source=source).faults == []
    end = Ulid.floor(START + HOURS * HOUR).previous()
    assert [row.ulid for row in source.cursors(FEED, f"warehouse_{name}")] == [end, end]
    if name == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(f"{place.lake(name)}/{FEED}").to_pyarrow_table()
        assert sorted(table["id"].to_pylist()) == list(range(2 * HOURS))
