# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed output``: what people see of batches among windows, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.version_compat import AirflowFailException
from tests.unit.airflow.commands import Commands
from tests.unit.airflow.conftest import CONSUMER, FEED, START
from tests.unit.airflow.cursor_commands import answer
from tests.unit.airflow.fakes import context
from tests.unit.airflow.test_operator import HOUR, assert_complete, exported, operator, path

__all__ = ["path"]  # a fixture
pytestmark = [pytest.mark.airflow, pytest.mark.usefixtures("server")]
NAME = "output remove-batches"


@pytest.fixture
def wedged(database: str, path: str) -> str:
    """An hour, and a batch of all that came after it, in one output."""
    operator(path, local_below=1000).execute(context(START, START + HOUR))
    operator(path, unit=None, mode="batch", local_below=1000).execute(context())
    return path


def test_windows_go_on_after_the_command_that_the_error_names(
    commands: Commands, database: str, wedged: str
) -> None:
    """Doctor names it as well; then the output is as if there had never been a batch."""
    task = operator(wedged, local_below=1000)
    with pytest.raises(AirflowFailException, match="output remove-batches"):
        task.execute(context(START, START + 6 * HOUR))
    assert commands.run("doctor", "--feed", FEED, "--path", wedged, "-o", "json") == 1
    assert "batch-among-windows" in commands.out
    assert "output remove-batches" in commands.out
    rows = commands.rows(NAME, "--feed", FEED, "--path", wedged, "--yes")
    assert {(row["shard"], row["rows"], row["consumer"], row["run"]) for row in rows} == {
        ("0", 15, CONSUMER, "dag/run/export/1"),
        ("1", 15, CONSUMER, "dag/run/export/1"),
    }
    assert exported(wedged) == list(range(6))
    task.execute(context(START, START + 6 * HOUR))
    assert_complete(database, wedged, 6)
    assert commands.rows(NAME, "--feed", FEED, "--path", wedged) == []


@pytest.mark.parametrize(("said", "status"), [("n", 1), ("", 2)])
def test_nothing_goes_without_a_yes(
    commands: Commands, wedged: str, monkeypatch: pytest.MonkeyPatch, said: str, status: int
) -> None:
    """They are shown first; nobody there is no yes."""
    answer(monkeypatch, said)
    assert commands.run(NAME, "--feed", FEED, "--path", wedged) == status
    assert "Readers will miss 30 events until windows export them again. Remove 2 batches" in commands.err
    assert "dag/run/export/1" in commands.err
    assert exported(wedged) == list(range(36))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"feed": "nyc.Weather"}, "FeedNotFoundError"),
        ({"path": "/nowhere/at/all"}, "ManifestError"),
    ],
)
def test_what_is_not_there_is_named(
    commands: Commands, source: SqliteFeedSource, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    """A feed, or an export."""
    given = {"feed": FEED, "path": str(tmp_path)} | arguments
    assert message in commands.fails(NAME, "--feed", given["feed"], "--path", given["path"], "--yes")
