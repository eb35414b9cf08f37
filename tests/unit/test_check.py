# SPDX-License-Identifier: Apache-2.0
"""Which tests ``make check`` chooses for what changed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import check

CODEC, LAYOUT = "airflow_changefeed/core/codec.py", "airflow_changefeed/output/layout.py"


FORMATS = {
    f"tests/unit/formats/test_{name}.py"
    for name in ("commits", "current", "opening", "publish", "reading", "types")
}


@pytest.fixture(scope="module")
def graph() -> check.Graph:
    """Give who imports whom in this project."""
    return check.import_graph()


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        (
            "airflow_changefeed/sources/sqlite/capture/table.py",
            {f"tests/unit/sources/test_sqlite_capture{name}.py" for name in ("_gaps", "_names")},
        ),
        ("airflow_changefeed/output/store.py", {"tests/unit/export/test_restored.py"}),
        (CODEC, {"tests/unit/core/test_codec.py"}),
        (LAYOUT, {"tests/unit/export/test_layout.py"}),
        ("airflow_changefeed/formats/delta.py", FORMATS),
        ("airflow_changefeed/formats/iceberg.py", FORMATS),
        ("airflow_changefeed/formats/publish.py", FORMATS),
        ("tests/unit/formats/libraries.py", FORMATS),
        ("tests/unit/export/flights.py", {"tests/unit/export/test_commit.py"}),
        ("airflow_changefeed/sql/mssql/none/jobs.sql", set()),
    ],
)
def test_a_file_is_tested_by_what_is_nearest(file: str, tests: set[str], graph: check.Graph) -> None:
    """Those that import it or are named after it, and not everything that stands on it."""
    found = check.nearest_tests(file, graph)
    assert tests <= found
    assert len(found) < 50


def test_a_changed_test_is_itself_and_what_nothing_tests_is_named(graph: check.Graph) -> None:
    """So that nobody takes silence for a test."""
    own = "tests/unit/core/test_codec.py"
    command = "airflow_changefeed/cli/output.py"
    assert "tests/unit/airflow/test_cli.py" in check.chosen_tests([command], graph)[0]
    picture = "docs/images/" + "nothing" * 2
    assert check.chosen_tests([own, picture], graph) == ([own], [picture])
    assert "tests/unit/test_project.py" in check.chosen_tests(["constraints.txt"], graph)[0]


@pytest.mark.parametrize(
    ("file", "test"),
    [
        ("airflow_changefeed/sql/mssql/feed/drain_feed.procedure.sql", "tests/unit/sql/test_mssql_script.py"),
        ("airflow_changefeed/sql/sqlite/capture/guard.sql", "tests/unit/sources/test_sqlite_capture.py"),
        ("airflow_changefeed/cli/cursors.py", "tests/unit/airflow/test_cli_cursors.py"),
    ],
)
def test_what_nothing_imports_has_tests_by_its_name_or_folder(
    file: str, test: str, graph: check.Graph
) -> None:
    """SQL is loaded by name, and so are commands."""
    chosen, without = check.chosen_tests([file], graph)
    assert test in chosen
    assert without == []
    assert len(chosen) < 15


@pytest.mark.parametrize(
    ("file", "is_shown"),
    [
        ("airflow_changefeed/sources/sqlite/feed/drain.py", True),
        ("airflow_changefeed/sources/shared.py", True),
        ("airflow_changefeed/cursors/moves.py", True),
        ("airflow_changefeed/consumers/events/payload.py", True),
        ("airflow_changefeed/sql/sqlite/feed/outbox.table.sql", True),
        ("tests/integration/contract/oracles.py", True),
        ("airflow_changefeed/sources/mssql/feed/mapping.py", False),
        ("airflow_changefeed/sql/mssql/feed/drain_feed.procedure.sql", False),
        ("tests/integration/contract/mssql_engine.py", False),
        ("airflow_changefeed/output/layout.py", False),
    ],
)
def test_the_contract_suite_runs_for_what_it_shows(file: str, is_shown: bool) -> None:
    """On the embedded engine alone, whatever server the environment names, and with pytest's options."""
    unit, *contract = check.steps_of_tests([LAYOUT, file], ["tests/unit/core/test_codec.py"], ["-x"])
    assert unit[1][-2:] == ["tests/unit/core/test_codec.py", "-x"]
    assert [step for step, _ in contract] == ["pytest: the contract suite with -x"] * is_shown
    for _, command in contract:
        assert command[:3] == ["env", "-u", "CHANGEFEED_TEST_MSSQL"]
        assert {"tests/integration/contract/", "-x"} <= set(command)


@pytest.mark.ci
def test_the_contract_suite_without_its_races_is_most_of_it() -> None:
    """The folders and markers that are named are there."""
    for folder in (*check.IN_CONTRACT, check.NOT_IN_CONTRACT[0]):
        assert (check.PROJECT / folder).is_dir()
    (_, command), *_ = check.steps_of_tests([check.CONTRACT], [], ["--collect-only", "-q"])[1:]
    found = subprocess.run(command, cwd=check.PROJECT, check=True, capture_output=True, text=True).stdout
    files = {line.partition(":")[0] for line in found.splitlines() if line.startswith(check.CONTRACT)}
    assert len(files) > 30
    assert f"{check.CONTRACT}test_order.py" in files
    assert "mssql]" not in found
    assert "test_no_promise_breaks_while_all_race" not in found


def test_each_step_says_how_it_ended(capfd: pytest.CaptureFixture[str]) -> None:
    """Below what the steps say themselves; one that failed hides no other. Without a chosen test: none."""
    steps = [(f"step {status}", [sys.executable, "-c", f"exit({status})"]) for status in (0, 3, 5)]
    assert check.run_steps(steps) == 1
    lines = capfd.readouterr().out.split("\n")[1:]
    assert [re.sub(r" +[\d.]+ s ", "", line) for line in lines if line] == [
        "ok step 0",
        "FAILED step 3",
        "none step 5",
    ]
    assert check.run_steps(steps[::2]) == 0


def test_changed_is_what_is_committed_staged_edited_and_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since the branch left main; what was removed is not there to be tested."""
    monkeypatch.setattr(check, "PROJECT", tmp_path)

    def git(*words: str) -> None:
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
        subprocess.run(("git", *identity, *words), cwd=tmp_path, check=True, capture_output=True)

    git("init", "-b", "main")
    for name in ("same.py", "gone.py", "edited.py"):
        (tmp_path / name).write_text(name)
    git("add", ".")
    git("commit", "-m", "first")
    git("switch", "-c", "work")
    (tmp_path / "committed.py").write_text("1")
    (tmp_path / "gone.py").unlink()
    git("add", ".")
    git("commit", "-m", "second")
    (tmp_path / "edited.py").write_text("2")
    (tmp_path / "new.py").write_text("3")
    assert check.changed_files() == ["committed.py", "edited.py", "new.py"]
    assert check.changed_files("HEAD") == ["edited.py", "new.py"]
