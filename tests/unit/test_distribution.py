# SPDX-License-Identifier: Apache-2.0
"""Tests that share something stay in one process when several share the tests."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.distribution import group_of, rank_of

PROJECT = Path(__file__).resolve().parents[2]
CONTRACT = "tests/integration/contract/test_seal.py::test_a_seal"


def _uses_spark(path: Path) -> bool:
    """Say whether a module has a function that asks for the fixture ``spark``."""
    functions = (
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    )
    return any(argument.arg == "spark" for node in functions for argument in node.args.args)


def test_one_process_has_the_spark_session() -> None:
    """Every module that asks for the session belongs to one group, so that it is made once."""
    modules = [path for path in (PROJECT / "tests").rglob("test_*.py") if _uses_spark(path)]
    assert len(modules) > 5
    groups = {path: group_of(f"{path.relative_to(PROJECT).as_posix()}::test_x[1]") for path in modules}
    assert [path for path, group in groups.items() if group != "spark"] == []


def test_one_process_has_the_servers_database() -> None:
    """The contract suite empties the database that it is given; each file of another engine has its own."""
    for parameters in ("mssql", "outbox-mssql", "mssql-serialized", "serialized-mssql-a:b"):
        assert group_of(f"{CONTRACT}[{parameters}]") == "contract on mssql"
    for test in (CONTRACT, f"{CONTRACT}[sqlite]", f"{CONTRACT}[outbox-sqlite]"):
        assert group_of(test) == "tests/integration/contract/test_seal.py"


@pytest.mark.parametrize("folder", ["unit", "integration", "system"])
def test_the_rest_stays_together_by_file(folder: str) -> None:
    """What a module sets up once is not set up in two processes."""
    file = f"tests/{folder}/test_x.py"
    assert group_of(f"{file}::test_a[tests/integration/spark/::1]") == group_of(f"{file}::test_b") == file


def test_what_takes_longest_begins() -> None:
    """The Spark session first, then Airflow's services, unit tests at the end."""
    folders = ("integration/spark", "system", "integration/contract", "unit/core")
    ranks = [rank_of(f"tests/{folder}/test_x.py::test_a") for folder in folders]
    assert ranks == sorted(set(ranks))
    assert rank_of("tests/integration/mssql/test_spark.py::test_a") == ranks[0]
