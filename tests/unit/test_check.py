# SPDX-License-Identifier: Apache-2.0
"""Which tests ``make check`` chooses for what changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.tools import check

CODEC, LAYOUT = "airflow_changefeed/core/codec.py", "airflow_changefeed/output/layout.py"


@pytest.fixture(scope="module")
def graph() -> check.Graph:
    """Give who imports whom in this project."""
    return check.import_graph()


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        (CODEC, {"tests/unit/core/test_codec.py"}),
        (LAYOUT, {"tests/unit/export/test_layout.py"}),
        ("airflow_changefeed/cli/commands/output.py", {"tests/unit/airflow/test_cli_output.py"}),
        ("airflow_changefeed/tables/delta.py", {"tests/unit/tables/test_commits.py"}),
        ("tests/unit/export/flights.py", {"tests/unit/export/test_commit.py"}),
        ("airflow_changefeed/sql/mssql/agent/jobs.sql", set()),
    ],
)
def test_a_file_is_tested_by_what_is_nearest(file: str, tests: set[str], graph: check.Graph) -> None:
    """Those that import it or are named after it, and not everything that stands on it."""
    found = check.nearest_tests(file, graph)
    assert tests <= found
    assert len(found) < 40


def test_a_changed_test_is_itself_and_what_nothing_tests_is_named(graph: check.Graph) -> None:
    """So that nobody takes silence for a test."""
    own = "tests/unit/core/test_codec.py"
    picture = "docs/images/" + "nothing" * 2
    assert check.chosen_tests([own, picture], graph) == ([own], [picture])
    assert "tests/unit/test_project.py" in check.chosen_tests(["constraints.txt"], graph)[0]


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
