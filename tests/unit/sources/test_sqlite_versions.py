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
