# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed sql``, ``install`` and ``setup-feed``, the latter two on the embedded source."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed import __version__
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.sql.mssql import script
from tests.unit.airflow.commands import Commands, run


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A SQLite file with a table, and the connection to it."""
    path = tmp_path / "feeds.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(
            'create table "shop.Order" (Id int not null, Line int not null, primary key (Id, Line))'
        )
        connection.execute('create table "shop.Keyless" (Id integer)')
    monkeypatch.setenv(
        "AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({"conn_type": "sqlite", "host": str(path)})
    )
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    return path


@pytest.fixture
def commands(path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Give the commands on that connection."""
    return Commands(capsys)


def test_sql_needs_neither_connection_nor_metadata(tmp_path: Path) -> None:
    """It prints the script alone, where Airflow has never been set up and its database cannot be reached."""
    nowhere = tmp_path / "nowhere" / "airflow.db"
    done = subprocess.run(
        [sys.executable, "-m", "airflow_changefeed", "sql"],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
        env={
            **os.environ,
            "AIRFLOW_HOME": str(tmp_path / "home"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{nowhere}",
        },
    )
    assert done.stdout == script()
    assert not nowhere.parent.exists()


def test_sql_writes_the_script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With another schema and cache, to standard output or a file, or one line that says what is wrong."""
    assert run("sql", "--schema", "cf", "--sequence-cache", "5") == 0
    assert capsys.readouterr().out == script("cf", sequence_cache=5)
    file = tmp_path / "changefeed.sql"
    assert run("sql", "--output-file", str(file)) == 0
    assert file.read_bytes() == script().encode()
    out, err = capsys.readouterr()
    assert (out, __version__ in err, str(file) in err) == ("", True, True)
    nowhere = f"{tmp_path}/no/such/folder.sql"
    for option, value, message in (
        ("--schema", "x" * 16, "schema must be 1 to 15"),
        ("--schema", "a$b", "Flyway and DbUp"),
        ("--output-file", nowhere, f"No such file or directory: '{nowhere}'"),
    ):
        assert run("sql", option, value) == 2
        out, err = capsys.readouterr()
        assert (out, message in err) == ("", True)


def test_the_embedded_source_needs_no_installation(commands: Commands, path: Path) -> None:
    """It says so, succeeds, and leaves the file as it was."""
    before = path.read_bytes()
    assert commands.run("install", "--force", "--sequence-cache", "1") == 0
    assert "needs no installation" in commands.err
    assert path.read_bytes() == before
    (row,) = commands.rows("install")
    assert (row["before"], row["after"], row["feeds"], row["database"]) == (
        __version__,
        __version__,
        [],
        None,
    )


def test_a_connection_that_holds_no_feeds_is_named(
    commands: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that does not exist, one of another type, one whose file is not there, one that is no database."""
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", "password": "canary"}))
    missing, wrong = tmp_path / "missing.db", tmp_path / "wrong.db"
    wrong.write_text("this is no database, and long enough to be looked at")
    for name, place in (("GONE", missing), ("WRONG", wrong)):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "sqlite", "host": str(place)}))
    for conn_id, words in {
        "nowhere": "Airflow has no connection 'nowhere'",
        "lake": "'lake' is of type 'aws', which cannot hold feeds",
        "gone": str(missing),
        "wrong": str(wrong),
    }.items():
        commands.conn_id = conn_id
        for name in ("install", "status"):
            message = commands.fails(name)
            assert message.startswith("ConnectionNotUsableError: ")
            assert words in message
            assert "canary" not in message


def test_a_feed_is_set_up(commands: Commands) -> None:
    """Its kind and keys are shown; repeating it is harmless."""
    options = ("shop.Order", "--shard-key-type", "bigint", "--time-tolerance", "PT60.5S")
    expected = {
        "feed": "shop.Order",
        "kind": "outbox",
        "shard_key_type": "bigint",
        "key_columns": ["Id", "Line"],
        "time_tolerance": 60.5,
        "max_hold": None,
        "resource_version": 1,
    }
    assert commands.rows("setup-feed", *options) == [expected]
    assert "shop.Order is set up" in commands.err
    assert commands.rows("setup-feed", *options) == [expected]
    assert commands.rows("install")[0]["feeds"] == ["shop.Order"]


def test_a_table_that_cannot_become_a_feed(commands: Commands) -> None:
    """The error says what to do about it."""
    for words, message in {
        "shop.Missing": "table 'shop.Missing' not found",
        "shop.Keyless": "no primary key",
        "shop.Order --kind serialized": "need a blob column",
        "shop.Order --time-tolerance 36501d": "time_tolerance must be 0 to 36500 days",
        "shop.Order --compression page": "SQLite keeps all tables in one file; omit them",
        "shop.Order --filegroup=": "filegroup is empty; name a filegroup, or omit it",
    }.items():
        assert message in commands.fails("setup-feed", *words.split())


def test_settings_are_changed_after_asking(
    commands: Commands, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a feed or a capture, with what they were; what is not named stays, and a repeat asks nothing."""
    source = SqliteFeedSource(str(path))
    commands.rows("setup-feed", "shop.Order")
    commands.rows("capture enable", "--table", "shop.Order")
    for name in ("shop.Order", "shop.Order_changes"):
        asked = {"--max-hold": "max_hold from forever to 30d", "--time-tolerance": "from 3600 to "}
        for option, words in asked.items():
            monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
            assert commands.run("setup-feed", name, option, "30d") == 1
            assert f"Change of feed {name} " in commands.err
            assert words in commands.err
        assert (source.feed(name).max_hold, source.feed(name).resource_version) == (timedelta.max, 1)
        (row,) = commands.rows("setup-feed", name, "--max-hold", "30d", "--yes")
        assert (row["feed"], row["max_hold"], row["resource_version"]) == (name, 2_592_000, 2)
        assert commands.rows("setup-feed", name) == [row]
        (row,) = commands.rows("setup-feed", name, "--max-hold", "forever", "--yes")
        assert row["max_hold"] is None
    assert {row["feed_resource_version"] for row in commands.rows("status")} == {3}


def test_a_repeat_does_not_set_back_what_somebody_sets_meanwhile(
    commands: Commands, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings that are not named stay as they are by then."""
    source, set_up = SqliteFeedSource(str(path)), SqliteFeedSource.set_up_feed
    source.set_up_feed("shop.Order")

    def slowly(self: SqliteFeedSource, table: str, **options: Any) -> Any:
        set_up(source, table, time_tolerance=timedelta(minutes=1))
        return set_up(self, table, **{**options, "resource_version": None})

    monkeypatch.setattr(SqliteFeedSource, "set_up_feed", slowly)
    commands.rows("setup-feed", "shop.Order", "--max-hold", "12h", "--yes")
    info = source.feed("shop.Order")
    assert (info.time_tolerance, info.max_hold) == (timedelta(minutes=1), timedelta(hours=12))


def test_a_copy_is_given_an_identity_of_its_own(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A person is told what it means, and asked; a no leaves it as it is."""
    source = SqliteFeedSource(str(path))
    source.set_up_feed("shop.Order")
    before = source.identity().id
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert run("renew-identity", "--conn-id", "changefeed_default") == 1
    assert source.identity().id == before
    told = capsys.readouterr().err
    assert before in told
    assert "outputs of the original" in told
    assert run("renew-identity", "--conn-id", "changefeed_default", "--yes", "-o", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["before"], row["after"]) == (before, source.identity().id)
    assert row["after"] != before
