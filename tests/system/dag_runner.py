# SPDX-License-Identifier: Apache-2.0
"""One Airflow for all tests of a process that run DAGs."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.fork_server import WITHOUT_SERVER, ForkServer


@dataclass(frozen=True)
class DagRuns:
    """
    What became of some runs of DAGs.

    :ivar results: of the tasks of each run that have one, by their names and map indexes.
    :ivar variables: all of Airflow's Variables.
    :ivar output: all that was printed and logged.
    """

    states: list[str]
    results: list[list[Any]]
    variables: dict[str, str]
    output: str


class DagRunner:
    """
    An Airflow that runs commands and DAGs, started when it is needed.

    :param home: Airflow's home; there.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._server: ForkServer | None = None

    def run(self, *runs: tuple[str, str, dict[str, Any] | None]) -> DagRuns:
        """
        Run DAGs in a process with the environment of this one, and with Airflow's database as it is when new.

        :param runs: as ``tests.system.run_dags`` takes them.
        """
        status, output = self.python("tests.system.run_dags", json.dumps(runs), folder=self.home)
        assert status == 0, output[-5000:]
        return DagRuns(**json.loads(output.splitlines()[-1]), output=output)

    def python(self, *arguments: str, folder: Path) -> tuple[int, str]:
        """Run ``python -m``, with environment and database likewise; return its exit code and its output."""
        if self._server is None:
            # Airflow reads as it is imported whether new DAGs are paused; assets start no run of those.
            environment = {
                **os.environ,
                "AIRFLOW_HOME": str(self.home),
                "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            }
            # XCom's serializers import pandas.
            self._server = ForkServer(environment, self.home / "server.log", *WITHOUT_SERVER, "pandas")
            self._start("airflow", "db", "migrate", folder=self.home)
            shutil.copy(self.home / "airflow.db", self.home / "empty.db")
        shutil.copy(self.home / "empty.db", self.home / "airflow.db")
        return self._start(*arguments, folder=folder)

    def _start(self, *arguments: str, folder: Path) -> tuple[int, str]:
        assert self._server is not None
        log = self.home / "output.log"
        log.unlink(missing_ok=True)
        environment = {**os.environ, "AIRFLOW_HOME": str(self.home)}
        try:
            process = self._server.start(*arguments, environment=environment, folder=folder, log=log)
            status = process.wait(timeout=300)
        except BaseException:
            self.close()  # what still runs is no other test's
            raise
        return status, log.read_text(encoding="utf-8")

    def close(self) -> None:
        """End the process, and what runs in it."""
        if self._server is not None:
            self._server.close()
            self._server = None
