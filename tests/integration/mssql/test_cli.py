# SPDX-License-Identifier: Apache-2.0
"""``airflow-changefeed`` on a T-SQL server: delivery to DBAs, and what operators do by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_changefeed import __version__
from airflow_changefeed.sql.mssql import script
from tests.integration.mssql.server import Client, Database, Rows, new_database
from tests.unit.airflow.commands import Commands, connection_json

FEED = "myservice.MyEvent"
SHARD = "00000000-0000-0000-0000-00000000abcd"
_LOOK = "select name, rtrim(type) from sys.objects where schema_id = schema_id('changefeed')"


@pytest.fixture
def commands(
    empty_database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Commands:
    """Give the commands on the module's database."""
    _connect(monkeypatch, "CHANGEFEED_DEFAULT", empty_database.description)
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "")
    return Commands(capsys)


def _connect(monkeypatch: pytest.MonkeyPatch, conn_id: str, description: dict[str, Any]) -> None:
    described = {"type": "mssql", **description}
    monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id}", connection_json(described))


def _cache(database: Database) -> str:
    return str(database.sequence_cache)


def _content(client: Client) -> list[Rows]:
    return [
        sorted(client.rows(_LOOK)),
        sorted(client.rows("select name from sys.database_principals")),
        client.rows("select feed_id, name, kind, shard_key_type, tolerance_ms, floor_time, version from "
                    "[changefeed].[feeds]"),
    ]  # fmt: skip


@contextmanager
def _version(database: Database, version: str) -> Iterator[None]:
    """Let the database say that another version is installed."""
    with database.client() as client:
        client.results("drop function [changefeed].[version]")
        client.results(
            f"create function [changefeed].[version]() returns varchar(20) as begin return '{version}'; end"
        )
    yield


def test_a_database_is_installed_by_the_command(commands: Commands, empty_database: Database) -> None:
    """From nothing; a second time it says that this version was there, and changes nothing."""
    assert commands.run("status") == 0
    assert "Changefeed is not installed here" in commands.err
    (row,) = commands.rows("install", "--sequence-cache", _cache(empty_database))
    assert (row["before"], row["after"], row["feeds"]) == (None, __version__, [])
    assert f"Installed version {__version__}" in commands.err
    with empty_database.unchanged(_content):
        (row,) = commands.rows("install")
        assert (row["before"], row["after"]) == (__version__, __version__)
        assert "Reinstalled version" in commands.err


def test_the_script_can_be_run_twice(empty_database: Database) -> None:
    """
    As sqlcmd sends it, and inside of one transaction, as Flyway does unless it is told otherwise.

    A transaction that fails leaves nothing behind.
    """
    text = script(sequence_cache=empty_database.sequence_cache)
    with new_database() as database, database.client() as client:
        client.results("begin transaction")
        client.script(text)
        client.results("rollback transaction")
        assert client.rows(_LOOK) == []
        client.script(text)
        client.results("create table myservice.MyEvent (EventID int not null primary key)")
        client.results(f"exec changefeed.setup_feed N'{FEED}', @outbox = 1")
        before = _content(client)
        client.script(text)
        assert _content(client) == before
        client.results("begin transaction")
        client.script(text)
        client.results("commit transaction")
        assert _content(client) == before
        assert client.value("select changefeed.version()") == __version__


def test_an_upgrade_takes_the_feeds_along(commands: Commands, database: Database) -> None:
    """Both versions are told, and every feed is of the new one afterwards."""
    with database.client() as client:
        client.results("create table myservice.Upgraded (EventID int not null primary key)")
    assert commands.run("setup-feed", "myservice.Upgraded") == 0
    with _version(database, "0.0.1"), database.client() as client:
        client.results("update changefeed.feeds set version = '0.0.1'")
        (row,) = commands.rows("install")
        assert (row["before"], row["after"]) == ("0.0.1", __version__)
        assert "myservice.Upgraded" in row["feeds"]
        assert f"Upgraded from version 0.0.1 to {__version__}" in commands.err
        assert set(client.rows("select version from changefeed.feeds")) == {(__version__,)}
        client.results("exec changefeed.drop_feed N'myservice.Upgraded'")


def test_a_login_that_may_not_install(
    commands: Commands, empty_database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has the remedy, and no password; nothing is made."""
    with new_database() as database, database.login() as seen:
        _connect(monkeypatch, "POOR", seen.description)
        commands.conn_id = "poor"
        message = commands.fails("install")
        assert message.startswith("PermissionDeniedError: ")
        assert "airflow-changefeed sql" in message
        assert seen.description["password"] not in message
        with database.client() as client:
            assert client.rows(_LOOK) == []


@pytest.fixture(scope="module")
def feed(database: Database) -> Database:
    """Set up a feed with UUID shards and a key of several types, with three events in its outbox."""
    with database.client() as client:
        client.results(
            "create table myservice.MyEvent (Tenant uniqueidentifier not null, "
            "Price decimal(38, 4) not null, "
            "Code varbinary(8) not null, At datetime2(6) not null, Number bigint not null, "
            "primary key (Tenant, Price, Code, At, Number))"
        )
        client.results(
            f"exec changefeed.setup_feed N'{FEED}', @outbox = 1, @shard_key_type = 'uniqueidentifier'"
        )
        for hour in (1, 2, 3):
            key = f"'{SHARD}', 1234567890123456789012345678901234.5678, 0x00ff, '2013-01-01 00:00:00.000001'"
            client.results(
                f"insert into myservice.MyEvent values ({key}, {9223372036854775800 + hour}); "
                f"insert into changefeed.[outbox:{FEED}] "
                "(shard_id, time_hint, Tenant, Price, Code, At, Number) "
                f"values ('{SHARD}', '2013-01-01 0{hour}:00', {key}, {9223372036854775800 + hour})"
            )
    return database


@pytest.fixture
def fed(feed: Database, commands: Commands) -> Commands:
    """Give the commands on the feed."""
    return commands


def test_operators_do_all_by_commands(fed: Commands) -> None:
    """From the outbox to the purge, in the order of an afternoon."""
    (state,) = fed.rows("status", "--feed", FEED)
    assert (state["shard"], state["head"], state["has_outbox"]) == (SHARD, None, True)
    (sealed,) = fed.rows("seal", "--feed", FEED, "--until", "2013-01-01T03:00:00Z")
    assert (sealed["shard"], sealed["until"]) == (SHARD, "2013-01-01T03:00:00Z")
    assert sealed["head_time"] == "2013-01-01T02:00:00Z"
    events = fed.rows("read", "--feed", FEED, "--shard", SHARD)
    assert [event["key"] for event in events] == [
        {
            "Tenant": SHARD,
            "Price": "1234567890123456789012345678901234.5678",
            "Code": "0x00ff",
            "At": "2013-01-01T00:00:00.000001",
            "Number": 9223372036854775800 + hour,
        }
        for hour in (1, 2, 3)
    ]
    rest = fed.rows("read", "--feed", FEED, "--shard", SHARD, "--start", events[0]["ulid"])
    assert rest == events[1:]
    purge = ("purge", "--feed", FEED, "--before", "2013-01-01T04:00:00Z")
    (row,) = fed.rows(*purge, "--dry-run")
    assert (row["rows"], row["held_back_by"]) == (2, ["the feed is only sealed until 2013-01-01T03:00:00Z"])
    assert [row["rows"] for row in fed.rows(*purge, "--yes")] == [2]
    (state,) = fed.rows("status", "--feed", FEED)
    assert state["purged_upto_time"] == "2013-01-01T02:59:59.999Z"
