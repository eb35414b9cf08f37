# SPDX-License-Identifier: Apache-2.0
"""The Airflow of demo, UI and browser tests leaves no process behind, and removes only what is its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.system.airflow_home import AirflowHome
from tests.system.airflow_settings import PROJECT
from tests.system.processes import HomeError, alive, wait_for

pytestmark = [pytest.mark.ci, pytest.mark.airflow, pytest.mark.xdist_group("airflow home")]

STARTER = """
import sys
from pathlib import Path
from tests.system.airflow_home import AirflowHome
AirflowHome(Path(sys.argv[1]), dags=Path(sys.argv[1])).start()
"""


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_home_whose_starter_was_ended_by_a_signal(
    tmp_path: Path, sig: signal.Signals
) -> None:
    """SIGTERM cleans up, even half-way; after SIGKILL, ``stop`` of the same folder does."""
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


def test_a_home_refuses_to_wipe_a_folder_that_it_did_not_make(tmp_path: Path) -> None:
    """A fresh start removes only an earlier home."""
    precious = tmp_path / "precious.txt"
    precious.write_text("mine")

    with pytest.raises(HomeError, match="left as it is"):
        AirflowHome(tmp_path, dags=tmp_path).start()

    assert precious.read_text() == "mine"
