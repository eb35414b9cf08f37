# SPDX-License-Identifier: Apache-2.0
"""Which engines the suite runs against."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.contract.engines import MSSQL_VARIABLE

FOLDER = Path(__file__).resolve().parent


@pytest.mark.ci
def test_an_engine_that_is_named_but_not_there_fails(tmp_path: Path) -> None:
    """Nobody who names a server takes a skipped run for a passed one."""
    options = [
        "-qx",
        "-k",
        "mssql",
        f"--basetemp={tmp_path / 'inner'}",
        "-o",
        f"cache_dir={tmp_path / 'cache'}",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(FOLDER / "test_poll.py")],
        cwd=FOLDER.parents[2],
        env={**os.environ, MSSQL_VARIABLE: "mssql://user:secret@127.0.0.1:9/feeds"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-3000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
    assert "passed" not in done.stdout.splitlines()[-1]
