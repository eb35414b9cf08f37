# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed snapshot``, on the embedded source; and what doctor says of snapshots."""

from __future__ import annotations

import io
import json
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_changefeed.doctor.doctor import begun_snapshots
from tests.clocks import after_now
from tests.unit.airflow.commands import Commands
from tests.unit.lake.stock import CAPTURE, TABLE, Stock


@pytest.fixture
def stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stock:
    """A captured table, and the connection to it."""
    stock = Stock.create(tmp_path)
    feeds = {"conn_type": "sqlite", "host": stock.source.database.path}
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps(feeds))
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    return stock


@pytest.fixture
def commands(stock: Stock, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Give the commands on that connection."""
    return Commands(capsys)


def begun(stock: Stock, seconds: float = 60.0) -> None:
    """Begin a snapshot, and leave it."""
    begin = stock.source.now()
    stock.source.seal(CAPTURE, begin)
    more = {"path": "/other", "begin": begin, "by": "Anna", "seconds": seconds}
    stock.source.begin_snapshot(CAPTURE, TABLE, token="01A", **more)  # type: ignore[arg-type]


def test_a_snapshot_is_taken_here(stock: Stock, commands: Commands) -> None:
    """It says what it reads, and from when on folds can start from it; also a part by the key."""
    arguments = ("--output-path", stock.lake, "--range-rows", "40", "--output", "json")
    assert commands.run("snapshot take", "--feed", CAPTURE, *arguments) == 0, commands.err
    (row,) = json.loads(commands.out)
    assert (row["feed"], row["table"], row["rows"]) == (CAPTURE, TABLE, 100)
    assert f"{TABLE} of feed {CAPTURE} since {row['begin']}: 3 of 3 ranges to read" in commands.err
    assert "Range 2: 20 rows" in commands.err
    assert f"at any time from {row['exact_from']} on" in commands.err
    part = ("--feed", CAPTURE, "--output-path", stock.lake, "--where")
    (row,) = commands.rows("snapshot take", *part, "id > 90 and id <= 95")
    assert (row["rows"], row["where"]) == (5, "id > 90 and id <= 95")
    assert "'name' is not a key column; the key columns are 'id'" in commands.fails(
        "snapshot take", *part, "name = 1"
    )


def test_those_that_have_begun_are_listed(stock: Stock, commands: Commands) -> None:
    """With who began them, and when they expire."""
    assert commands.run("snapshot list") == 0
    assert "in progress: 0" in commands.err
    begun(stock)
    assert commands.run("snapshot list", "--feed", CAPTURE, "--output", "json") == 0
    (row,) = json.loads(commands.out)
    assert (row["by"], row["path"], row["token"], row["where"]) == ("Anna", "/other", "01A", "")
    assert row["begin"] < row["expires_at"]


def test_one_is_given_up_after_a_question(
    stock: Stock, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who answers no has changed nothing; who gives up frees the table for another output."""
    begun(stock)
    assert commands.run("snapshot take", "--feed", CAPTURE, "--output-path", stock.lake) == 2
    assert "SnapshotError" in commands.err
    assert f"snapshot give-up --feed {CAPTURE} --table {TABLE} --conn-id changefeed_default" in commands.err
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert commands.run("snapshot give-up", "--feed", CAPTURE) == 1
    assert len(stock.source.snapshots()) == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert commands.run("snapshot give-up", "--feed", CAPTURE, "--table", TABLE) == 0
    assert stock.source.snapshots() == []
    assert commands.run("snapshot give-up", "--feed", CAPTURE, "--yes") == 2
    assert "nothing to give up" in commands.err


def test_doctor_names_what_holds_back_purges(stock: Stock) -> None:
    """As a note while it may run, as a warning once it has expired."""
    assert begun_snapshots(stock.source, None) == []
    begun(stock)
    ((_, fault),) = begun_snapshots(stock.source, CAPTURE)
    assert (fault.kind.code, fault.severity.value) == ("snapshot-open", "note")
    assert "that Anna began at" in fault.what
    assert begun_snapshots(stock.source, "shop.other") == []
    stock.source.end_snapshot(CAPTURE, TABLE, token="01A")
    begun(stock, seconds=0.0)
    ((_, fault),) = begun_snapshots(stock.source, None)
    assert (fault.kind.code, fault.severity.value) == ("snapshot-expired", "warning")
    assert "give-up" in fault.remedy
    # What it has read is useless once a purge has passed it, and so is going on.
    stock.change("delete from stock where id = 1")
    stock.source.set_up_feed(CAPTURE, max_hold=timedelta(milliseconds=1))
    stock.source.seal(CAPTURE, after_now(stock.source))
    stock.source.purge(CAPTURE, stock.source.now())
    ((_, fault),) = begun_snapshots(stock.source, None)
    assert (fault.kind.code, fault.severity.value) == ("snapshot-lost", "warning")
    assert "events since its begin were purged" in fault.what
    assert fault.remedy.startswith("Give up the snapshot: airflow-changefeed snapshot give-up")
