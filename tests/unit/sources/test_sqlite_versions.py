# SPDX-License-Identifier: Apache-2.0
"""Resource versions, histories and overviews in SQLite files that are locked or empty."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.fault import Limits
from airflow_changefeed.core.feed import FeedKind
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import StaleVersionError
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.sources.sqlite.feed.names import load_feed
from airflow_changefeed.sources.sqlite.versions import check_feed


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Give a file with an event table."""
    return str(tmp_path / "feeds.db")


@pytest.fixture
def connection(path: str) -> Iterator[sqlite3.Connection]:
    """Give a connection of a user, with a table ``t``."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("create table t (id integer primary key, a text)")
        yield connection


@pytest.fixture
def source(connection: sqlite3.Connection, path: str) -> SqliteFeedSource:
    """Give a source with a feed over the table, which waits for locks only briefly."""
    source = SqliteFeedSource(path, lock_timeout=0.5)
    source.set_up_feed("t")
    return source


def _traced(call: Callable[[], object]) -> list[str]:
    """Return the statements that a call runs, and each connection it opens."""
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect
    statements: list[str] = []

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        statements.append("connect")
        connection = connect(*args, **options)
        # Comments are what a statement runs by itself.
        connection.set_trace_callback(
            lambda text: None if text.startswith("-- ") else statements.append(text)
        )
        return connection

    with patch("sqlite3.connect", traced):
        call()
    return statements


@pytest.mark.parametrize("kind", list(FeedKind))
def test_an_overview_of_many_shards_is_a_few_statements(
    connection: sqlite3.Connection, path: str, kind: FeedKind
) -> None:
    """On one connection, and as many as for one shard."""
    connection.execute("create table page (shard integer, ulid blob, id integer primary key)")
    source = SqliteFeedSource(path)
    source.set_up_feed("page", kind=kind)

    def fill(shards: range) -> None:
        for shard in shards:
            connection.execute(
                'insert into "changefeed.state:page" (shard_id, time_ms, ulid) values (?, 1, zeroblob(16))',
                (shard,),
            )
            connection.execute("insert into page (shard, ulid) values (?, ?)", (shard, b"\1" * 16))

    fill(range(1))
    source.begin_consumer("export", "page", {0: Ulid.MIN}, by="test")
    before = _traced(source.overview)
    assert before.count("connect") == 1
    fill(range(1, 300))
    source.begin_consumer("export", "page", dict.fromkeys(range(300), Ulid.MIN), by="test")
    assert len(source.overview()[0].shards) == 300
    assert len(_traced(source.overview)) == len(before) < 30
    behind = {position.behind for shard in source.overview()[0].shards for position in shard.consumers}
    assert behind == {1 if kind is FeedKind.SERIALIZED else 0}


def test_a_read_waits_for_no_writer_to_note_a_change(
    source: SqliteFeedSource, connection: sqlite3.Connection
) -> None:
    """It gives the version before, with which nobody can write any more."""
    connection.execute("alter table t add column b text")
    connection.execute("begin immediate")
    assert source.feed("t").resource_version == 1
    connection.execute("rollback")
    with pytest.raises(StaleVersionError):
        source.drop_feed("t", resource_version=1)
    assert source.feed("t").resource_version == 2


def test_a_file_that_cannot_be_written_is_read(
    source: SqliteFeedSource, connection: sqlite3.Connection
) -> None:
    """What changed beneath is passed over."""
    connection.execute("alter table t add column b text")
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def read_only(*args: Any, **options: Any) -> sqlite3.Connection:
        opened = connect(*args, **options)
        opened.execute("pragma query_only = on")
        return opened

    with patch("sqlite3.connect", read_only):
        assert source.feed("t").resource_version == 1
        assert [info.resource_version for info in source.feeds()] == [1]
        assert source.overview()[0].info.resource_version == 1


def test_versions_do_not_come_again_with_another_feed_of_a_name(source: SqliteFeedSource) -> None:
    """Who saw the one that was dropped does not drop its successor."""
    seen = source.feed("t").resource_version
    source.drop_feed("t")
    assert source.set_up_feed("t").resource_version > seen
    with pytest.raises(StaleVersionError):
        source.drop_feed("t", resource_version=seen)


def test_a_feed_whose_table_is_gone_is_in_the_overview(
    source: SqliteFeedSource, connection: sqlite3.Connection
) -> None:
    """Without shards; its version says that something happened."""
    connection.execute("drop table t")
    (found,) = source.overview()
    assert (found.info.columns, found.shards, found.info.resource_version) == ((), (), 2)


def test_a_file_without_feeds_has_an_empty_overview(connection: sqlite3.Connection, path: str) -> None:
    """As it has no feeds."""
    assert SqliteFeedSource(path).overview() == []


def test_a_consumer_of_events_makes_no_fault(source: SqliteFeedSource) -> None:
    """The column that it adds to the cursor rows is no other version's."""
    source.create_consumer(ConsumerSpec("me", "t"), begin=Ulid.MIN, starts={0: Ulid.MIN}, by="test")
    assert source.inspect(None, Limits()).faults == ()


def test_versions_of_consumers_outlive_their_feed(source: SqliteFeedSource) -> None:
    """A consumer of another feed of the name begins above those of the one that was dropped."""
    for version in (1, 2, 3):
        rows = source.begin_consumer("export", "t", {0: Ulid.MIN}, by="me")
        assert [row.resource_version for row in rows] == [version]
        source.drop_feed("t")
        source.set_up_feed("t")


def test_columns_that_change_before_the_lock_of_a_write_make_it_stale(
    source: SqliteFeedSource, connection: sqlite3.Connection
) -> None:
    """Between what was noted and the lock: the version that comes next is the present one."""
    seen = load_feed(connection, "t")
    check_feed(seen, seen.info.resource_version)
    connection.execute("alter table t add column b text")
    with pytest.raises(StaleVersionError, match="version 2 "):
        check_feed(seen, seen.info.resource_version)
    check_feed(seen, source.feed("t").resource_version)
