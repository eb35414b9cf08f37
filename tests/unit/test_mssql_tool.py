# SPDX-License-Identifier: Apache-2.0
"""``make test-mssql``: which server it takes, and what it says a run has shown."""

from __future__ import annotations

import ast
import os
import subprocess
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.tools.check_report import Outcome
from tests.tools.mssql import (
    IMAGE,
    PAGE,
    VARIABLE,
    NoServerError,
    container,
    find_engine,
    has_browser,
    main,
    pytest_command,
)
from tests.tools.settled import POINTS, table

PROJECT = Path(__file__).resolve().parents[2]
FAKE = """#!/bin/sh
echo "$@" >> "{log}"
case "$1" in
    run) [ -n "$MSSQL_SA_PASSWORD" ] || exit 3; {run} ;;
    port) echo 127.0.0.1:4711 ;;
esac
"""


def _functions(module: str) -> list[str]:
    """Return the names of a test module's tests."""
    tree = ast.parse((PROJECT / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    return [
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: point.name)
def test_each_question_is_answered_by_tests_that_exist(point: object) -> None:
    """A test that is renamed takes its question along, instead of leaving it open for ever."""
    for pattern in point.tests:  # type: ignore[attr-defined] # parametrized
        module, _, name = pattern.partition("::")
        modules = (
            [module]
            if "*" not in module
            else [
                f"tests.integration.mssql.{path.stem}"
                for path in (PROJECT / "tests/integration/mssql").glob("test_*.py")
                if fnmatchcase(f"tests.integration.mssql.{path.stem}", module)
            ]
        )
        wanted = (
            name.split("mssql")[0].split("read committed")[0].split("optimized")[0].split("serialized")[0]
        )
        assert any(
            fnmatchcase(one, f"{wanted.rstrip('*')}*") for each in modules for one in _functions(each)
        ), pattern


def _outcomes(result: str = "passed") -> list[Outcome]:
    """Return an outcome for each pattern of each question."""
    return [Outcome(test.replace("*", "x[mssql]"), result) for point in POINTS for test in point.tests]


def test_the_table_says_what_was_shown() -> None:
    """Nothing counts as shown that was skipped or not tried, and one failure is enough."""
    held = table(_outcomes(), has_locks=True).splitlines()
    assert len(held) == len(POINTS)
    assert all(" holds (" in line for line in held)
    assert all("results only" in line for line in table(_outcomes(), has_locks=False).splitlines())
    assert all("open: not tried" in line for line in table(_outcomes("skipped"), has_locks=True).splitlines())
    assert all("open: not tried" in line for line in table([], has_locks=True).splitlines())
    failed = [*_outcomes(), *_outcomes("failed")[:1]]
    assert "DOES NOT HOLD" in table(failed, has_locks=True).splitlines()[0]
    assert "DOES NOT HOLD" in table(failed, has_locks=False).splitlines()[0]


def test_a_run_leaves_what_takes_hours_to_make_soak() -> None:
    """It would not end within the hour that the page names."""
    environment = {**os.environ, VARIABLE: "mssql://nobody@127.0.0.1:1/nothing"}
    collect = [
        *pytest_command(["tests/integration/contract/test_races.py"]),
        "--collect-only",
        "-q",
        "-n",
        "0",
    ]
    found = subprocess.run(
        collect, cwd=PROJECT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert "test_races.py::test_no_promise_breaks_while_all_race_and_some_are_killed[mssql-outbox]" in found
    assert "test_no_promise_breaks_in_a_long_race" not in found


@pytest.mark.parametrize(
    ("programs", "found"),
    [(("chromium", "chromedriver"), True), (("chromium",), False), (("chromedriver",), False), ((), False)],
)
def test_the_page_is_tested_where_there_is_a_browser(
    programs: tuple[str, ...], found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its driver; a machine without one still runs all else."""
    for name in programs:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert has_browser() is found


@pytest.mark.ci
def test_the_page_has_tests_of_the_server() -> None:
    """Each action that the page offers on a feed is tried on one of the server, too."""
    environment = {**os.environ, VARIABLE: "mssql://nobody@127.0.0.1:1/nothing"}
    collect = [*pytest_command([PAGE]), "--collect-only", "-q"]
    done = subprocess.run(
        collect, cwd=PROJECT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert done.count("[mssql]") >= 10


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
    with suppress(ZeroDivisionError), container("docker", IMAGE.format("2022")) as uri:
        raise ZeroDivisionError
    assert uri.endswith("@127.0.0.1:4711/master?trust_server_certificate=yes")
    password = uri.removeprefix("mssql://sa:").partition("@")[0]
    asked = log.read_text()
    assert "--publish 127.0.0.1::1433" in asked
    assert asked.splitlines()[-1] == "rm --force abc123"
    assert password not in asked


def test_a_container_that_does_not_start_is_told(log: Path) -> None:
    """In the engine's own words."""
    _install(log.parent, "echo no such image >&2; exit 125")
    with pytest.raises(NoServerError, match="no such image"), container("docker", IMAGE.format("2022")):
        pass


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"PATH": "/nowhere"}, "neither docker nor podman answers"),
        ({"MSSQL_VERSION": "2016"}, "expected 2017, 2019, 2022, 2025"),
    ],
)
def test_what_is_missing_is_said_in_a_line(
    settings: dict[str, str],
    words: str,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And nothing is started."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert main([]) == 1
    said = capsys.readouterr().err
    assert (said.count("\n"), words in said) == (1, True)
    assert "run" not in (log.read_text().split() if log.exists() else [])
    assert os.environ.get(VARIABLE) is None
