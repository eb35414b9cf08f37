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
from pathlib import Path

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
        connection.execute('create table "shop.Order" (Id integer, Line integer, primary key (Id, Line))')
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


def test_sql_takes_the_options_of_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    """Another schema, and another cache."""
    assert run("sql", "--schema", "cf", "--sequence-cache", "5") == 0
    assert capsys.readouterr().out == script("cf", sequence_cache=5)


def test_sql_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the line ends of the script, and a word about it on standard error."""
    file = tmp_path / "changefeed.sql"
    assert run("sql", "--output-file", str(file)) == 0
    assert file.read_bytes() == script().encode()
    out, err = capsys.readouterr()
    assert out == ""
    assert __version__ in err
    assert str(file) in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--schema", "x" * 16), "schema must be 1 to 15"),
        (("--schema", "a$b"), "Flyway and DbUp"),
        (("--output-file", "{tmp}/no/such/folder.sql"), "No such file or directory: '{tmp}/no/such"),
    ],
    ids=["schema", "sign", "file"],
)
def test_sql_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    """Status 2, and one line that says what is wrong."""
    assert run("sql", *(one.replace("{tmp}", str(tmp_path)) for one in arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message.replace("{tmp}", str(tmp_path)) in err


@pytest.mark.parametrize("cache", ["0", "-1", "many"])
def test_sql_refuses_a_cache_that_is_none(capsys: pytest.CaptureFixture[str], cache: str) -> None:
    """By the parser."""
    with pytest.raises(SystemExit) as caught:
        run("sql", f"--sequence-cache={cache}")
    assert caught.value.code == 2
    assert f"'{cache}' is not a whole number" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("shop.Missing",), "table 'shop.Missing' not found"),
        (("shop.Keyless",), "no primary key"),
        (("shop.Order", "--kind", "serialized"), "need a blob column"),
        (("shop.Order", "--time-tolerance", "36501d"), "time_tolerance must be 0 to 36500 days"),
        (("shop.Order", "--compression", "page"), "SQLite keeps all tables in one file; omit them"),
        (("shop.Order", "--filegroup", ""), "filegroup is empty; name a filegroup, or omit it"),
    ],
    ids=["missing", "keyless", "kind", "tolerance", "compression", "filegroup"],
)
def test_a_table_that_cannot_become_a_feed(
    commands: Commands, arguments: tuple[str, ...], message: str
) -> None:
    """The error says what to do about it."""
    assert message in commands.fails("setup-feed", *arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the following arguments are required: table"),
        (("shop.Order", "--kind", "both"), "invalid choice: 'both'"),
        (("shop.Order", "--shard-key-type", "text"), "invalid choice: 'text'"),
        (("shop.Order", "--time-tolerance=-1"), "'-1' is not a length of time, 0 or more"),
        (("shop.Order", "--time-tolerance", "nan"), "'nan' is not a length of time, 0 or more"),
        (("shop.Order", "--time-tolerance", "60"), "(a text such as 90s, 15m, 2h, 1d or PT1H)"),
        (("shop.Order", "--max-hold", "30"), "'30' is not a length of time"),
        (("shop.Order", "--max-hold", "Forever"), "or PT1H), or forever"),
        (("shop.Order", "--compression", "zip"), "invalid choice: 'zip'"),
    ],
    ids=["table", "kind", "shards", "negative", "nan", "unit", "hold", "upper case", "compression"],
)
def test_options_of_setup_feed_that_mean_nothing(
    commands: Commands, arguments: tuple[str, ...], message: str
) -> None:
    """By the parser, with what is wrong."""
    assert message in commands.refuses("setup-feed", *arguments)


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
