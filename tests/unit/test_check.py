# SPDX-License-Identifier: Apache-2.0
"""Which tests ``make check`` chooses for what changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.tools import check

#: A file, and tests that must be among its nearest.
NEAREST = (
    ("airflow_changefeed/core/codec.py", "core/test_codec"),
    ("airflow_changefeed/output/layout.py", "export/test_layout"),
    ("airflow_changefeed/sources/sqlite/capture/table.py", "sources/test_sqlite_capture_gaps"),
    ("airflow_changefeed/formats/iceberg.py", "formats/test_commits"),
    ("tests/unit/formats/libraries.py", "formats/test_commits"),
    # Nothing imports these: SQL is loaded by name, and so are commands.
    ("airflow_changefeed/sql/mssql/feed/drain_feed.procedure.sql", "sql/test_mssql_script"),
    ("airflow_changefeed/sql/sqlite/capture/guard.sql", "sources/test_sqlite_capture"),
    ("airflow_changefeed/cli/cursors.py", "airflow/test_cli_cursors"),
    ("constraints.txt", "test_project"),
)


def test_a_file_is_tested_by_what_is_nearest() -> None:
    """Those that import it or are named after it, and not everything that stands on it."""
    graph = check.import_graph()
    for file, test in NEAREST:
        chosen, without = check.chosen_tests([file], graph)
        assert f"tests/unit/{test}.py" in chosen, file
        assert without == []
        assert len(chosen) < 50, file
    own, picture = "tests/unit/core/test_codec.py", "docs/images/" + "nothing" * 2
    assert check.chosen_tests([own, picture], graph) == ([own], [picture])


#: A changed file, and whether the contract suite shows what it does.
SHOWN = {
    "airflow_changefeed/sources/sqlite/feed/drain.py": True,
    "airflow_changefeed/cursors/moves.py": True,
    "airflow_changefeed/sql/sqlite/feed/outbox.table.sql": True,
    "tests/integration/contract/oracles.py": True,
    "airflow_changefeed/sources/mssql/feed/mapping.py": False,
    "airflow_changefeed/sql/mssql/feed/drain_feed.procedure.sql": False,
    "tests/integration/contract/mssql_engine.py": False,
    "airflow_changefeed/output/layout.py": False,
}


def test_the_contract_suite_runs_for_what_it_shows() -> None:
    """On the embedded engine alone, whatever server the environment names, and with pytest's options."""
    for file, is_shown in SHOWN.items():
        unit, *contract = check.steps_of_tests([file], ["tests/unit/core/test_codec.py"], ["-x"])
        assert unit[1][-2:] == ["tests/unit/core/test_codec.py", "-x"]
        assert len(contract) == is_shown, file
        for _, command in contract:
            assert command[:3] == ["env", "-u", "CHANGEFEED_TEST_MSSQL"]
            assert {"tests/integration/contract/", "-x"} <= set(command)
    for folder in (*check.IN_CONTRACT, check.NOT_IN_CONTRACT[0]):
        assert (check.PROJECT / folder).is_dir()


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
