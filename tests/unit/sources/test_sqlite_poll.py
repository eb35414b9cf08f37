# SPDX-License-Identifier: Apache-2.0
"""One poll at a feed in SQLite: how it is put, and what it believes of the polls before it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import pytest

from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.sources.sqlite.feed.names import load_feed
from airflow_changefeed.sources.sqlite.feed.reader import poll_sql
from airflow_changefeed.sources.sqlite.feed.writer import lock

#: Columns of an event table, and the kind of its feed.
TABLES = {
    "outbox": ("id integer primary key", FeedKind.OUTBOX),
    "serialized": ("Shard integer not null, ULID blob not null, id integer primary key", FeedKind.SERIALIZED),
    "no shards": ("ULID blob not null, id integer primary key", FeedKind.SERIALIZED),
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Give a file that no poll has seen yet."""
    return str(tmp_path / "feeds.db")


@pytest.fixture
def connection(path: str) -> Iterator[sqlite3.Connection]:
    """Give a connection of a user."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def set_up(connection: sqlite3.Connection, path: str, name: str) -> SqliteFeedSource:
    """Set up feed ``t``, of one of the tables."""
    columns, kind = TABLES[name]
    connection.execute(f"create table t ({columns})")
    source = SqliteFeedSource(path)
    source.set_up_feed("t", kind=kind)
    return source


@pytest.mark.parametrize("name", TABLES)
def test_a_look_seeks(connection: sqlite3.Connection, path: str, name: str) -> None:
    """Neither feed nor outbox is scanned: each is gone into by its key, once for each shard."""
    set_up(connection, path, name)
    tables = load_feed(connection, "t")
    values = {"feed": "t", "kind": tables.info.kind.value, "consumers": '["reader"]'}
    plan = [row[3] for row in connection.execute(f"explain query plan {poll_sql(tables)}", values)]
    large = {tables.feed.strip('"'), tables.outbox.strip('"')}
    ways = [step.split()[0] for step in plan if len(step.split()) > 1 and step.split()[1] in large]
    assert ways == ["SEARCH"] * (3 if name == "outbox" else 1)


def test_the_first_look_is_one_statement(connection: sqlite3.Connection, path: str) -> None:
    """A new process knows nothing of the feed, and needs not."""
    source = set_up(connection, path, "outbox")
    connection.execute('insert into "changefeed.outbox:t" (id) values (1)')
    connect = sqlite3.connect
    statements: list[str] = []

    def traced(*args: object, **options: object) -> sqlite3.Connection:
        opened = connect(*args, **options)
        opened.set_trace_callback(statements.append)
        return opened

    with patch("sqlite3.connect", traced):
        assert set(source.poll("t", "reader").new_events) == {0}
    assert len(statements) == 1


def test_a_column_that_comes_later_counts(connection: sqlite3.Connection, path: str) -> None:
    """What a poll has learned of serialized writers' columns holds while the table is the same."""
    source = set_up(connection, path, "no shards")
    connection.execute("begin immediate")
    connection.execute("insert into t (ULID, id) values (?, 1)", (lock(connection, "t").ulid(0).bytes,))
    connection.execute("commit")
    assert set(source.poll("t", "reader").new_events) == {0}
    connection.execute("alter table t add column shard_id integer not null default 7")
    assert source.poll("t", "reader").new_events == {}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("has_looked", [False, True])
def test_a_feed_that_has_lost_its_table_says_so(
    connection: sqlite3.Connection, path: str, name: str, has_looked: bool
) -> None:
    """Also where only the feed's own tables are polled, and after a poll that found all well."""
    source = set_up(connection, path, name)
    if has_looked:
        source.poll("t", "reader")
    connection.execute("alter table t rename to elsewhere")
    with pytest.raises(FeedSetupError, match="lost its event table"):
        source.poll("t", "reader")
    connection.execute("alter table elsewhere rename to t")
    assert source.poll("t", "reader").shards == ()


@pytest.mark.parametrize("table", ["k", "known", "waiting", "e"])
def test_a_table_may_have_any_name(connection: sqlite3.Connection, path: str, table: str) -> None:
    """None of a poll's own names stands before it."""
    connection.execute(
        f"create table {table} (shard integer not null, ulid blob not null, id integer primary key)"
    )
    source = SqliteFeedSource(path)
    source.set_up_feed(table, kind=FeedKind.SERIALIZED)
    connection.execute("begin immediate")
    ulid = lock(connection, table, 7).ulid(0)
    connection.execute(f"insert into {table} values (7, ?, 1)", (ulid.bytes,))
    connection.execute("commit")
    assert source.poll(table, "reader").new_events[7].head == ulid
