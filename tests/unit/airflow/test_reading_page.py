# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/how-to/read-an-export.md, but those that need Spark."""

from __future__ import annotations

import shlex
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.output.store import ExportStore
from tests.examples import examples, run_example
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_cli import run
from tests.unit.export.flights import FEED, START, Flights, hours

PAGE = "how-to/read-an-export.md"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The export that the page speaks of."""
    flights = Flights.create(tmp_path / "feeds.db")
    flights.add(30, 0, shard=1, length=3)
    flights.add(6, 1, shard=2)
    flights.export(ExportStore(str(tmp_path / "export"), FEED), hours(0, 24))
    return tmp_path / "export"


def test_the_python_runs(path: Path) -> None:
    """In its order, each block with what those before it have made."""
    names: dict[str, Any] = {}
    for code in examples(PAGE, {"/data/export": path}):
        if "spark" not in code:
            run_example(code, names)
    assert names["flights"].count_rows() == 36
    assert list(names["frame"].columns) == ["id", "origin"]
    assert names["delayed"].height == sum(number / 4 > 5 for number in range(1, 37))
    assert names["by_shard"] == [(1, 30), (2, 6)]
    assert len(names["rows"]) == 36
    assert names["lazy"].collect().height == 36
    assert names["report"].faults == []
    (task,) = names["dag"].tasks
    assert task.execute(context(START, START + timedelta(days=1)))["rows"] == 36


def test_the_commands_run(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each as it stands there."""
    (block,) = examples(PAGE, {"/data/export": path}, "bash")
    for line in block.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "airflow-changefeed"
        assert run(*arguments) == 0
    out, err = capsys.readouterr()
    assert out.strip() == "[]"
    assert "48 units with 36 rows" in err
    assert "3 units with 30 rows" in err
