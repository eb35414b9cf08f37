# SPDX-License-Identifier: Apache-2.0
"""As many rounds of hostile input as a week of usual runs, with new examples each time."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PROJECT
from tests.unit.hostile.mutation import ROUNDS_VARIABLE

#: Rounds of each test where the environment names no other number: those of fifty usual runs.
ROUNDS, SEED_VARIABLE = 2000, "CHANGEFEED_HOSTILE_SEED"
FILES = ("tests/unit/hostile", "tests/unit/airflow/test_page_owasp.py")


@pytest.mark.nightly
@pytest.mark.timeout(4 * 3600)
def test_a_week_of_rounds(tmp_path: Path) -> None:
    """A failure names its seed, with which it is found again."""
    seed = os.environ.get(SEED_VARIABLE) or str(random.SystemRandom().randrange(1 << 32))
    # In CI usual runs have the same examples each time.
    around = {name: value for name, value in os.environ.items() if name != "CI"}
    around[ROUNDS_VARIABLE] = around.get(ROUNDS_VARIABLE) or str(ROUNDS)
    options = (
        "-m",
        "not nightly",
        "--timeout",
        "14400",
        f"--hypothesis-seed={seed}",
        "-o",
        f"cache_dir={tmp_path}",
    )
    command = (sys.executable, "-m", "pytest", "-q", *options, *FILES)
    done = subprocess.run(command, cwd=PROJECT, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{SEED_VARIABLE}={seed}\n{done.stdout[-20_000:]}"
