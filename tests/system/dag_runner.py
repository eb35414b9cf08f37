# SPDX-License-Identifier: Apache-2.0
"""One Airflow for all tests of a process that run DAGs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.run_dags import ENDED

PROJECT = Path(__file__).resolve().parents[2]


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
    A process that has Airflow imported and its metadata database made, started when it is needed.

    :param home: Airflow's home; made.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[str] | None = None

    def run(self, *runs: tuple[str, str, dict[str, Any] | None]) -> DagRuns:
        """
        Run DAGs in a process with the environment of this one, and with Airflow's database as it is when new.

        :param runs: as ``tests.system.run_dags`` takes them.
        """
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        environment = {**os.environ, "AIRFLOW_HOME": str(self._home)}
        lines: list[str] = []
        ended = ""
        try:
            process.stdin.write(json.dumps([environment, runs]) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.startswith(ENDED):
                    ended = line
                    break
                lines.append(line)
        finally:
            if not ended:
                self.close()  # what it prints from here on belongs to no other test
        output = "".join(lines)
        assert ended == f"{ENDED}0\n", output[-5000:]
        return DagRuns(**json.loads(lines[-1]), output=output)

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.run_dags"],
            cwd=PROJECT,
            env={**os.environ, "AIRFLOW_HOME": str(self._home)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self._process

    def close(self) -> None:
        """End the process, and what runs in it."""
        if self._process is not None:
            with self._process:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process = None
