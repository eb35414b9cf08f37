# SPDX-License-Identifier: Apache-2.0
"""Talk to the process that holds the compiler."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.tools.tsql.assemblies import PROJECT, require
from tests.tools.tsql.findings import Job, Result

MONO = (
    "It needs Mono. Debian, Ubuntu: "
    "sudo apt-get install libmono-2.0-1 mono-runtime mono-devel libmono-system-drawing4.0-cil"
)


class CompilerError(Exception):
    """The compiler did not answer; the check did not run."""


class Checker:
    """
    One process with the compiler, for as many jobs as are wanted; a context manager.

    :param folder: of the assemblies.
    :raises AssembliesMissingError: the folder lacks some.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = require(folder)

    def __enter__(self) -> Checker:
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.tools.tsql.worker", str(self._folder)],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()  # it holds nothing, and Mono may hang when it ends by itself
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def check(self, job: Job) -> Result:
        """
        Compile a job.

        :raises CompilerError: Mono is missing, or the process died.
        """
        return Result.from_json(self._ask(job.to_json()))

    def lock_steps(self, sql: str) -> tuple[str, ...]:
        """
        Return what a batch does about locks, in the order of its text (:mod:`tests.tools.tsql.steps`).

        :raises CompilerError: Mono is missing, or the process died; a batch that does not parse ends it.
        """
        return tuple(self._ask(sql))

    def _ask(self, asked: Any) -> Any:
        answer = ""
        try:
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        if not answer:
            raise CompilerError(f"Microsoft's compiler did not answer. {MONO}\n{self._last_words()}")
        return json.loads(answer)

    def _last_words(self) -> str:
        self._process.wait()
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip()
        return "\n".join(words.splitlines()[-12:]) or f"It ended with {self._process.returncode}."
