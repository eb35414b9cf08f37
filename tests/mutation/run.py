# SPDX-License-Identifier: Apache-2.0
"""Runs tests in a copy of the project, with a break and without."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutation.breaks import PACKAGE, PROJECT, Break
from tests.tools.tsql.assemblies import FOLDER, fetch

SERVER = "CHANGEFEED_TEST_MSSQL"
#: Seconds for a run of tests, and characters of what they print that are shown.
PATIENCE, SHOWN = 1800, 3000


def copy_project(folder: Path) -> Path:
    """
    Copy what git tracks, as it is in the working tree, and what is new there; return the folder.

    :raises AssembliesMissingError: Microsoft's compiler, which reads the locks of T-SQL, could not be had.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, folder / name)
    # Microsoft's compiler need not be fetched again.
    shutil.copytree(fetch(), folder / FOLDER.relative_to(PROJECT))
    return folder


def failure_without_a_break(project: Path, breaks: Sequence[Break]) -> str:
    """Return what the tests of some breaks print if one fails, and nothing if all pass."""
    for needs_server in (False, True):
        tests = sorted({test for one in breaks if one.needs_server is needs_server for test in one.tests})
        status, printed = _run(project, tests, needs_server=needs_server) if tests else (0, "")
        if status != pytest.ExitCode.OK:
            return printed
    return ""


def try_break(project: Path, one: Break) -> tuple[bool, str]:
    """
    Break a copy of the project, run the tests of the break, and mend the copy.

    :return: whether a test failed as it must, and what failed; if not, what the tests printed.
    :raises StaleBreakError: the break does not apply any more.
    """
    one.apply(project)
    try:
        status, printed = _run(project, one.tests, needs_server=one.needs_server)
    finally:
        shutil.copy2(PROJECT / PACKAGE / one.file, project / PACKAGE / one.file)
    if status != pytest.ExitCode.TESTS_FAILED:
        return False, f"pytest ended with {status!r}, and a test must fail:\n{printed}"
    if not re.search(one.says, printed):
        return False, f"{one.says!r} is not in what the failing test printed:\n{printed}"
    return True, "\n".join(line for line in printed.splitlines() if line.startswith(("FAILED", "ERROR")))


def _run(project: Path, tests: Sequence[str], *, needs_server: bool) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(project)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not nightly"]
    command.append(f"--basetemp={project.parent / 'temporary'}")
    # Of the tests that run on every engine only those of the one that is broken.
    if needs_server:
        command += ["-k", "mssql"]
    else:
        environment.pop(SERVER, None)
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return pytest.ExitCode.INTERRUPTED, f"the tests have not finished within {PATIENCE} s"
    return done.returncode, (done.stdout + done.stderr)[-SHOWN:]
