# SPDX-License-Identifier: Apache-2.0
"""Processes of the races, forked from one that has imported what they need."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "pytest",  # the program that starts them, which each would import
        *(f"tests.integration.contract.{name}_workers" for name in ("capture", "consumer", "cursor")),
        "adbc_driver_sqlite.dbapi",
        "pyarrow.parquet",
    ]
)


class WorkerProcess:
    """
    A process that runs a module's ``main``, with what of :class:`subprocess.Popen` is needed.

    It has the environment that the first of all had.

    :param errors: file that its standard error is appended to.
    """

    def __init__(self, module: str, errors: Path) -> None:
        job, stdin = _CONTEXT.Pipe(duplex=False)
        stdout, steps = _CONTEXT.Pipe(duplex=False)
        with job, stdin, stdout, steps:
            self._process = _CONTEXT.Process(target=_run, args=(module, job, steps, errors), daemon=True)
            self._process.start()
            self.stdin = os.fdopen(os.dup(stdin.fileno()), "wb")
            self.stdout = os.fdopen(os.dup(stdout.fileno()), "rb")

    @property
    def pid(self) -> int | None:
        """Its id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return its exit code, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code, as soon as it has one."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout or 0)
        return self._process.exitcode

    def kill(self) -> None:
        """End it by SIGKILL."""
        self._process.kill()

    def close(self) -> None:
        """Close its pipes."""
        self.stdout.close()
        with suppress(BrokenPipeError):
            self.stdin.close()


def _run(module: str, job: Connection, steps: Connection, errors: Path) -> None:
    with job, steps, errors.open("ab") as file:
        for number, descriptor in enumerate((job.fileno(), steps.fileno(), file.fileno())):
            os.dup2(descriptor, number)
    importlib.import_module(module).main()
