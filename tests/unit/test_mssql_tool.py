# SPDX-License-Identifier: Apache-2.0
"""``make test-mssql``: which server it takes, and what it says a run has shown."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from airflow_changefeed.exceptions import LockTimeoutError
from tests.integration.mssql.probes import Probe, again, complain
from tests.tools.check_report import Outcome, read_report
from tests.tools.mssql import (
    CONTAINER,
    IMAGE,
    PAGE,
    VARIABLE,
    NoServerError,
    container,
    find_engine,
    has_browser,
    kill_server,
    main,
    pytest_command,
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
        wanted = re.split("mssql|read committed|optimized|serialized|with", name)[0]
        assert any(
            fnmatchcase(one, f"{wanted.rstrip('*')}*") for each in modules for one in _functions(each)
        ), pattern


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


def test_the_table_says_what_the_server_answered_or_why_it_was_not_asked() -> None:
    """Below each question, each answer once; a question without any test is named, too."""
    for outcomes, line in (
        (_outcomes(answer="a count 3"), "    a count 3"),
        (_outcomes("skipped", message="not ours to kill\nmore"), "    skipped: not ours to kill"),
        (_outcomes("failed", message="assert 1 == 2"), "    failed: assert 1 == 2"),
        ([], "    no test of it ran"),
    ):
        assert table(outcomes, has_locks=True).splitlines().count(line) == len(POINTS)


def test_an_answer_is_read_from_the_report(tmp_path: Path) -> None:
    """As pytest writes what a test records."""
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuite><testcase classname="a" name="b"><properties><property name="answer" value="yes, 3"/>'
        '</properties></testcase><testcase classname="a" name="c"/></testsuite>'
    )
    assert [one.answer for one in read_report(report)] == ["yes, 3", ""]


def test_a_probe_answers_only_what_it_could_ask() -> None:
    """What a server lacks makes it a skip that says so, however well the rest went."""
    said: list[tuple[str, object]] = []
    probe = Probe(lambda name, value: said.append((name, value)))
    probe.end("yes")
    assert said == [("answer", "yes")]
    probe.lacks("no\n  locks")
    with pytest.raises(pytest.skip.Exception, match=r"no locks \(without that: yes\)"):
        probe.end("yes")


@pytest.mark.parametrize(
    ("rows", "events", "complaint"),
    [
        ((1, 2, 3), (1, 2, 3), None),
        ((1, 3), (1, 3), "reported as committed, and not in the table: [2] of 1"),
        ((1, 2, 3, 4), (1, 2, 3), "in the table, and not recorded: [4] of 1"),
        ((1, 2, 3), (1, 2, 3, 4), "recorded, and not in the table: [4] of 1"),
        ((1, 2, 3), (1, 2, 2, 3), "recorded twice: [2] of 1"),
    ],
)
def test_each_loss_is_noticed(rows: tuple[int, ...], events: tuple[int, ...], complaint: str | None) -> None:
    """By the oracle of those probes that kill, upgrade or enable beside writers."""
    assert complain((1, 2), rows, events) == ([complaint] if complaint else [])


def test_what_is_transient_is_tried_again() -> None:
    """How often is said; when the time is over, it fails."""
    answers: list[Exception | str] = [LockTimeoutError("busy"), LockTimeoutError("busy"), "done"]

    def call() -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert again(call) == ("done", 2)
    answers.append(LockTimeoutError("busy"))
    with pytest.raises(LockTimeoutError):
        again(call, seconds=-1)


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
