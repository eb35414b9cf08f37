# SPDX-License-Identifier: Apache-2.0
"""
What holds for every test: Airflow's home is in the project, nothing comes from the person's own.

It runs before any test module is imported, hence before Airflow reads its settings.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from hypothesis import settings

PROJECT = Path(__file__).resolve().parents[1]
#: Which of several processes of one run this is; empty without pytest-xdist.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
try:
    AIRFLOW = version("apache-airflow")
except PackageNotFoundError:
    AIRFLOW = "none"  # make matrix-spark

_PERSONAL = ("AIRFLOW__", "AIRFLOW_CONN_", "AIRFLOW_VAR_", "AIRFLOW_CONFIG")
# A shell set up for a real Airflow must not lend the tests its database, connections or Variables.
for _name in [name for name in os.environ if name.startswith(_PERSONAL)]:
    del os.environ[_name]
os.environ |= {
    # Each version and process has metadata of its own: tests write the same Variables.
    "AIRFLOW_HOME": str(PROJECT / ".airflow" / "-".join(filter(None, ("tests", AIRFLOW, WORKER)))),
    "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    # Tests store DAGs of the same name one after the other; Airflow 3.1 keeps the first for half a minute.
    "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    # Spark's workers take the system's Python unless told, and its driver the machine's public address.
    "PYSPARK_PYTHON": sys.executable,
    "PYSPARK_DRIVER_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
}

# Timing is benchmarked, never asserted; and a failure in CI must be found again by the next run.
settings.register_profile("changefeed", deadline=None, print_blob=True, derandomize="CI" in os.environ)
settings.load_profile("changefeed")

# Half a million objects are made while tests are collected, and stay. To look for garbage among them takes a
# quarter of that time.
gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage again."""
    gc.enable()


#: Where files need no disk, and the bytes that must be free there.
MEMORY, ENOUGH = Path("/dev/shm"), 4 * 1024**3


def pytest_configure(config: pytest.Config) -> None:
    """
    Keep what tests write in memory, where their databases do not wait for a disk at each commit.

    Nightly tests write too much for that. pytest removes the folders of tests that passed (pyproject.toml).
    """
    is_short = "not nightly" in config.option.markexpr
    if is_short and MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ENOUGH:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


#: What a process makes once, and what costs more than the tests that use it, by its fixture.
SHARED = {"spark": "spark", "runner": "dag runs"}

if WORKER:

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
        """Tell pytest-xdist which tests stay in one process; it begins with the largest groups."""
        for item in items:
            groups = [SHARED[fixture] for fixture in getattr(item, "fixturenames", ()) if fixture in SHARED]
            if "CHANGEFEED_TEST_MSSQL" in os.environ and "mssql" in re.split(r"[/\[\]-]", item.nodeid):
                groups = ["mssql"]  # they empty one database
            for group in groups:
                item.add_marker(pytest.mark.xdist_group(group))
