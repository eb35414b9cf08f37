# SPDX-License-Identifier: Apache-2.0
"""What a plain install takes from the registry today, without constraints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(1200)


def _by_pip(folder: Path) -> dict[str, str]:
    report = folder / "report.json"
    run = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    subprocess.run([*run, "--report", str(report), str(PROJECT)], check=True, env=_environment())
    found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {each["metadata"]["name"]: each["metadata"]["version"] for each in found}


def _environment() -> dict[str, str]:
    """Leave out what would constrain the resolution."""
    return {name: text for name, text in os.environ.items() if "CONSTRAINT" not in name}


def test_pip_takes_the_tested_version_of_both_pysparks(tmp_path: Path) -> None:
    """Other versions of the two would mix Python code with foreign jars; ``make release-check`` asks uv."""
    found = _by_pip(tmp_path)
    assert found["pyspark"] == found["pyspark-client"]
    assert f"pyspark=={found['pyspark']}\n" in (PROJECT / "constraints.txt").read_text(encoding="utf-8")
    assert found["apache-airflow-providers-apache-spark"]
