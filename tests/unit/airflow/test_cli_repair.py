# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed capture repair``, on the embedded source."""

from __future__ import annotations

import io
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.airflow.commands import Commands

CAPTURE = "shop.Order_changes"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Give the commands on a file with a capture that recorded a value of another class."""
    path = tmp_path / "shop.db"
    monkeypatch.setenv(
        "AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": str(path)})
    )
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    commands = Commands(capsys)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute('create table "shop.Order" (Id integer primary key, PaidAt date)')
        commands.rows("capture enable", "--table", "shop.Order")
        connection.execute("""insert into "shop.Order" values (7, '2024')""")
    return commands


def test_it_shows_the_values_that_no_export_can_carry(commands: Commands) -> None:
    """Status 1 while there are any, and what to do; nothing is changed."""
    for _ in range(2):
        assert commands.run("capture repair", CAPTURE, "-o", "json") == 1
        (row,) = json.loads(commands.out)
        assert (row["event"], row["image"], row["column"], row["value"]) == (1, "new", "PaidAt", "2024")
        assert (row["declared"], row["expected"], row["found"]) == ("date", "string", "integer")
        assert "--present, --cast, --null or --value" in commands.err


def test_a_repair_is_shown_and_remembered(commands: Commands) -> None:
    """With its note and both values; then there is nothing more to repair."""
    (row,) = commands.rows("capture repair", CAPTURE, "--cast", "--note", "years", "--yes")
    assert (row["before"], row["after"], row["note"]) == ("2024", "'2024'", "years")
    assert "Repaired 1 recorded values" in commands.err
    assert commands.rows("capture repairs") == [row]
    assert commands.rows("capture repair", CAPTURE) == []
    assert commands.run("capture repair", CAPTURE, "--null", "--note", "years", "--yes") == 0
    assert "nothing was repaired" in commands.err


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("", 2)], ids=["yes", "no", "nobody"])
def test_it_asks_with_what_would_take_the_values_places(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, answer: str, status: int
) -> None:
    """Nothing but a yes lets it go on."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    value = ("--value", "2024-05-01", "--note", "from the invoice")
    assert commands.run("capture repair", CAPTURE, *value, "-o", "json") == status
    assert "'2024-05-01'" in commands.err
    assert "Repair 1 recorded values of capture shop.Order_changes? [y/N]" in commands.err
    assert len(commands.rows("capture repairs")) == (status == 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--null", "--cast", "--note", "x"), "--null and --cast cannot be combined; use only one of them"),
        (("--value", "", "--present", "--note", "x"), "--value and --present cannot be combined"),
        (("--null",), "--note is missing; explain why these values are correct"),
        (("--present", "--note", "x"), "the table's row holds integer, which"),
    ],
)
def test_what_cannot_be_repaired_so_is_refused(
    commands: Commands, options: tuple[str, ...], message: str
) -> None:
    """Status 2, and nothing is changed."""
    assert message in commands.fails("capture repair", CAPTURE, *options)
    assert commands.rows("capture repairs") == []


def test_a_note_that_was_pasted_unwritten_is_refused(commands: Commands) -> None:
    """Printed commands have three dots there."""
    said = commands.refuses("capture repair", CAPTURE, "--null", "--note", "...")
    assert "argument --note: '...' says nothing; write what was found and done, it is kept" in said


def test_an_event_and_a_column_can_be_chosen(commands: Commands) -> None:
    """Others are left alone."""
    for options in (("--event", "2"), ("--column", "Id")):
        assert commands.rows("capture repair", CAPTURE, *options) == []
    assert commands.run("capture repair", CAPTURE, "--event", "1", "--column", "PaidAt") == 1
