# SPDX-License-Identifier: Apache-2.0
"""Tests that share something stay in one process when several share the tests."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.distribution import group_of, rank_of

PROJECT = Path(__file__).resolve().parents[2]
CONTRACT = "tests/integration/contract/test_seal.py::test_a_seal"


@functools.cache
def _functions() -> dict[str, set[str]]:
    """Return the fixtures that each function of a test module asks for, by its node id."""
    return {
        f"{path.relative_to(PROJECT).as_posix()}::{node.name}": {each.arg for each in node.args.args}
        for path in sorted((PROJECT / "tests").rglob("test_*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }


def _functions_with(fixture: str) -> list[str]:
    """Return the functions of test modules that ask for a fixture, by their node ids."""
    return [function for function, fixtures in _functions().items() if fixture in fixtures]


def test_two_processes_have_a_spark_session() -> None:
    """Every test that asks for the session belongs to one of two groups, so that it is made once in each."""
    tests = _functions_with("spark")
    assert len({test.partition("::")[0] for test in tests}) > 5
    assert {group_of(f"{test}[1]") for test in tests} == {"spark", "spark tables"}


def test_one_process_has_the_airflow_that_runs_dags() -> None:
    """Every test that asks for it belongs to one group, so that it is started once."""
    tests = [test for test in _functions_with("runner") if "::test_" in test]
    assert len({test.partition("::")[0] for test in tests}) == 6
    assert [test for test in tests if group_of(test) != "dag runs"] == []


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
