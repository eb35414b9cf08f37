# SPDX-License-Identifier: Apache-2.0
"""How pytest-xdist shares the tests among processes: which of them stay together, and which begin."""

from __future__ import annotations

import re

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

#: Tests that use the process's Spark session, which costs more than they do.
SPARK = (
    "tests/integration/spark/",
    "tests/integration/contract/test_reconcile.py",
    "tests/integration/mssql/test_canary.py",
    "tests/integration/mssql/test_spark.py",
)
#: About half of them, for a second process with a session.
TABLES = tuple(f"tests/integration/spark/test_{name}" for name in ("fold", "merge", "reconcile"))
#: Tests whose DAGs the process's Airflow runs, which costs more to start than most of them.
DAG_RUNS = (
    "tests/system/test_dags.py",
    "tests/system/test_runs.py",
    "tests/system/test_consume_stopped.py",
    "tests/system/test_observability.py",
    "tests/system/test_canary.py::test_no_secret_is_found_after_a_run",
    "tests/system/test_docs.py::test_the_tutorial_runs",
)
#: What takes longest, in the order in which it begins: no process waits for another at the end.
LONGEST = (*SPARK, "tests/system/", "tests/integration/")


def group_of(test: str) -> str:
    """
    Return the group that a test belongs to; a group runs in one process, in the order of its tests.

    :param test: node id, as pytest gives it.
    """
    file = test.partition("::")[0]
    # They empty one database.
    if file.startswith("tests/integration/contract/") and "mssql" in re.split(r"[\[\]-]", test):
        return "contract on mssql"
    if file.startswith(SPARK):
        return "spark tables" if file.startswith(TABLES) else "spark"
    if test.startswith(DAG_RUNS):
        return "dag runs"
    return file


def rank_of(test: str) -> int:
    """Return when a test's group begins, from 0."""
    if group_of(test).startswith("spark"):
        return 0
    return next((rank for rank, start in enumerate(LONGEST) if test.startswith(start)), len(LONGEST))


class Groups(LoadScopeScheduling):
    """Gives a process that has little left to do the next group."""

    def __init__(self, config: pytest.Config, log: Producer) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
