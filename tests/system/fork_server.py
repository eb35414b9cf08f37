# SPDX-License-Identifier: Apache-2.0
"""
Processes of Airflow that are forks of one which has it imported: that takes longer than most of what they do.

``python -m tests.system.fork_server`` reads lines of JSON until its input ends, and answers each with a line:
what to run, with the process's id; the id of a process, with its exit code or null.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.minors import DAGBAG
from tests.system.airflow_settings import PROJECT
from tests.system.processes import HomeError, tail, wait_for

MODULES = (
    "airflow.api_fastapi.execution_api.routes",
    "airflow.cli.cli_parser",
    DAGBAG,
)
#: Besides, of processes that run tasks or triggers without an API server.
WITHOUT_SERVER = ("airflow.sdk.execution_time.supervisor", "tests.system.in_process_api")


@dataclass
class ForkedProcess:
    """
    A process, with what of :class:`subprocess.Popen` is needed.

    :ivar returncode: None until :meth:`poll` has seen that it ended.
    """

    server: ForkServer
    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        if self.returncode is None:
            self.returncode = self.server.ask(self.pid)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """
        Wait until it has ended; return its exit code.

        :raises HomeError: it still runs after so many seconds.
        """
        wait_for(f"the end of process {self.pid}", lambda: self.poll() is not None, timeout=timeout)
        assert self.returncode is not None
        return self.returncode


class ForkServer:
    """
    Starts the process that has Airflow imported.

    :param environment: of the process; what Airflow reads as it is imported holds for all forks, too.
    :param log: file that it writes to.
    :param modules: imported besides :data:`MODULES`.
    """

    def __init__(self, environment: Mapping[str, str], log: Path, *modules: str) -> None:
        self._log = log
        self._forks: list[ForkedProcess] = []
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.system.fork_server", *MODULES, *modules],
                env=environment,
                cwd=PROJECT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,  # Ctrl-C is ours to pass on, in our order
            )

    def start(
        self, *arguments: str, environment: Mapping[str, str], folder: Path, log: Path
    ) -> ForkedProcess:
        """
        Start ``python -m`` with these arguments, in a session of its own and without input.

        :param folder: where it runs.
        :param log: file that its output is appended to.
        """
        pid = self.ask([arguments, dict(environment), str(folder), str(log)])
        self._forks.append(ForkedProcess(self, pid))
        return self._forks[-1]

    def ask(self, request: object) -> Any:
        """
        Send a line, and return the answer.

        :raises HomeError: the process has died.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        if answer := self.process.stdout.readline():
            return json.loads(answer)
        raise HomeError(f"The fork server died; end of {self._log}:\n{tail(self._log)}")

    def close(self) -> None:
        """Kill the process and its forks."""
        if self.process.poll() is None:  # else others may have their numbers now
            for fork in self._forks:
                if fork.returncode is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(fork.pid, signal.SIGKILL)
        self.process.kill()
        with contextlib.suppress(BrokenPipeError), self.process:
            pass


def run(arguments: Sequence[str], environment: Mapping[str, str], folder: str, log: str) -> None:
    """Become the process that was asked for."""
    from airflow import settings
    from setproctitle import setproctitle

    os.setsid()
    setproctitle(" ".join(arguments))
    with open(os.devnull, "rb") as nothing, open(log, "ab") as file:
        os.dup2(nothing.fileno(), 0)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    settings.configure_vars()
    settings.reconfigure_orm()
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def main() -> None:
    """Answer until the input ends; a fork returns when it has run what it was asked to."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for module in sys.argv[1:]:
            importlib.import_module(module)
        for line in sys.stdin:
            request = json.loads(line)
            if isinstance(request, int):
                ended, status = os.waitpid(request, os.WNOHANG)
                answer = os.waitstatus_to_exitcode(status) if ended else None
            else:
                answer = os.fork()
                if answer == 0:
                    break
            print(json.dumps(answer), file=answers, flush=True)
        else:
            return
    run(*request)


if __name__ == "__main__":
    main()
