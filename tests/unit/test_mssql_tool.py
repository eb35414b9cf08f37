# SPDX-License-Identifier: Apache-2.0
"""``make test-mssql``: which server it takes, and what it says a run has shown."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.integration.mssql.probes import complain
from tests.tools.check_report import Outcome
from tests.tools.mssql import (
    CONTAINER,
    IMAGE,
    VARIABLE,
    container,
    find_engine,
    kill_server,
)
from tests.tools.settled import POINTS, table

PROJECT = Path(__file__).resolve().parents[2]
FAKE = """#!/bin/sh
echo "$@" >> "{log}"
case "$1" in
    run) [ -n "$MSSQL_SA_PASSWORD" ] || exit 3; {run} ;;
esac
"""


def _functions(module: str) -> list[str]:
    """Return the names of a test module's tests."""
    tree = ast.parse((PROJECT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    return [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def test_each_question_is_answered_by_tests_that_exist() -> None:
    """A test that is renamed takes its question along, instead of leaving it open for ever."""
    files = (PROJECT / "tests/integration/mssql").glob("test_*.py")
    of_server = [f"tests.integration.mssql.{path.stem}" for path in files]
    for pattern in (pattern for point in POINTS for pattern in point.tests):
        module, _, name = pattern.partition("::")
        modules = [one for one in of_server if fnmatchcase(one, module)] if "*" in module else [module]
        wanted = re.split("mssql|read committed|optimized|serialized|with", name)[0].rstrip("*")
        tests = [test for each in modules for test in _functions(each)]
        assert any(fnmatchcase(test, f"{wanted}*") for test in tests), pattern


def _outcomes(result: str = "passed", **said: str) -> list[Outcome]:
    """Return an outcome for each pattern of each question."""
    return [
        Outcome(test.replace("*", "x[mssql]"), result, **said) for point in POINTS for test in point.tests
    ]


def _rows(outcomes: list[Outcome], *, has_locks: bool = True) -> list[str]:
    lines = table(outcomes, has_locks=has_locks).splitlines()
    return [line for line in lines if not line.startswith("    ")]


def test_the_table_says_what_was_shown() -> None:
    """Nothing counts as shown that was skipped or not tried, and one failure is enough."""
    held = _rows(_outcomes())
    assert len(held) == len(POINTS)
    assert all(" settled: yes (" in line for line in held)
    assert all("results only" in line for line in _rows(_outcomes(), has_locks=False))
    for outcomes in (_outcomes("skipped"), []):
        assert all(" not asked " in line for line in _rows(outcomes))
    failed = [*_outcomes(), *_outcomes("failed")[:1]]
    for has_locks in (True, False):
        assert "settled: NO" in _rows(failed, has_locks=has_locks)[0]


def test_each_loss_is_noticed() -> None:
    """By the oracle of those probes that kill, upgrade or enable beside writers."""
    for rows, events, complaint in (
        ((1, 2, 3), (1, 2, 3), None),
        ((1, 3), (1, 3), "reported as committed, and not in the table: [2] of 1"),
        ((1, 2, 3, 4), (1, 2, 3), "in the table, and not recorded: [4] of 1"),
        ((1, 2, 3), (1, 2, 3, 4), "recorded, and not in the table: [4] of 1"),
        ((1, 2, 3), (1, 2, 2, 3), "recorded twice: [2] of 1"),
    ):
        assert complain((1, 2), rows, events) == ([complaint] if complaint else [])


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the place where a fake docker, the only one there is, writes what it is asked."""
    log = tmp_path / "log"
    _install(tmp_path, "echo started; echo abc123")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv(VARIABLE, raising=False)
    return log


def _install(folder: Path, run: str) -> None:
    docker = folder / "docker"
    docker.write_text(FAKE.format(log=folder / "log", run=run))
    docker.chmod(0o755)


def test_a_container_is_removed_whatever_happens(log: Path) -> None:
    """It listens on loopback alone; its password is in no argument."""
    assert find_engine() == "docker"
    with suppress(ZeroDivisionError), container("docker", IMAGE.format("2022")) as (uri, name):
        raise ZeroDivisionError
    assert name == "abc123"
    port = re.findall(r"@127\.0\.0\.1:(\d+)/master\?trust_server_certificate=yes$", uri)[0]
    password = uri.removeprefix("mssql://sa:").partition("@")[0]
    asked = log.read_text()
    assert f"--publish 127.0.0.1:{port}:1433" in asked
    assert asked.splitlines()[-1] == "rm --force --volumes abc123"
    assert password not in asked


def test_only_a_server_of_ours_is_killed(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a shutdown, which would write everything to its files; then it is started again."""
    assert not kill_server()
    assert not log.exists()
    monkeypatch.setenv(CONTAINER, "docker abc123")
    assert kill_server()
    assert log.read_text().splitlines() == ["kill abc123", "start abc123"]
