# SPDX-License-Identifier: Apache-2.0
"""The embedded source's second way to stream, ADBC, keeps the same promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.contract.sqlite_engine import BULK_READER_VARIABLE

pytestmark = pytest.mark.ci

FOLDER = Path(__file__).resolve().parent
TARGETS = [str(FOLDER / name) for name in ("test_stream.py", "test_seal.py")]


def test_adbc_streams_pass_the_same_tests(tmp_path: Path) -> None:
    """
    The unchanged tests of streams, in a process of their own.

    ADBC brings a second SQLite, which must not share a process with others that hold the same file open; in
    these tests nobody else is at the file, so that no lock is missed by it.
    """
    folders = [f"--basetemp={tmp_path / 'inner'}", "-o", f"cache_dir={tmp_path / 'cache'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", "sqlite", *folders, *TARGETS],
        cwd=FOLDER.parents[2],
        env={**os.environ, BULK_READER_VARIABLE: "adbc"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == pytest.ExitCode.OK, done.stdout[-5000:] + done.stderr[-3000:]
