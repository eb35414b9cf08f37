# SPDX-License-Identifier: Apache-2.0
"""Snapshots that have begun: who may begin them, what they hold back, and whose marks count."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import (
    CaptureNotFoundError,
    FeedSetupError,
    InvalidArgumentError,
    PermissionDeniedError,
    SnapshotError,
    SourceUnavailableError,
)
from airflow_changefeed.sources.base_capture import KeyRange, SnapshotClaim
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.pool import RetryPolicy
from tests.integration.mssql.line import Line
from tests.integration.mssql.server import Database

TABLE, FEED = "myservice.Claimed", "myservice.Claimed_changes"
OTHER, OTHERS = "myservice.Other", "myservice.Other_changes"
HOUR = timedelta(hours=1)
#: What SQL Server's procedures reach by ownership chaining, which Babelfish does not have.
CHAINED = (
    "execute on changefeed.find_feed",
    "execute on changefeed.quoted",
    "execute on changefeed.flush_log",
    "execute on changefeed.later",
    "select on changefeed.readable_feeds",
    "select, update on changefeed.feeds",
    "select on changefeed.captures",
    "select on changefeed.capture_tables",
    "select on changefeed.capture_columns",
    "select on changefeed.capture_gaps",
    "select on changefeed.declared_columns",
    "execute on changefeed.declared_name",
    "select, insert, update, delete on changefeed.snapshots",
    "select, insert, update, delete on changefeed.snapshot_marks",
)


@pytest.fixture(scope="module")
def captured(database: Database) -> Iterator[MssqlFeedSource]:
    """Capture two tables, each by itself."""
    with database.client() as client, database.source() as source:
        for table in (TABLE, OTHER):
            client.results(f"create table {table} (k int not null primary key)")
            spec = CaptureSpec((TableCapture(table),), guard_schema=False, guard_table=False)
            source.enable_capture(spec)
        yield source


@pytest.fixture
def source(captured: MssqlFeedSource) -> Iterator[MssqlFeedSource]:
    """Give the source; what a test has begun ends with it."""
    yield captured
    for one in captured.snapshots():
        captured.end_snapshot(one.feed, one.table, token=one.token)


def _begin(source: MssqlFeedSource, token: str = "t1", feed: str = FEED, **other: Any) -> SnapshotClaim:
    given: dict[str, Any] = {
        "token": token,
        "path": "/lake/claimed",
        "begin": datetime(2026, 1, 1, 10, tzinfo=timezone.utc),
        "by": "a person",
        "seconds": 3600,
        **other,
    }
    return source.begin_snapshot(feed, feed.removesuffix("_changes"), **given)


def _mark(source: MssqlFeedSource, mark: str, token: str = "t1") -> None:
    with source.marking(FEED, TABLE, token=token, mark=mark, seconds=7200):
        pass


def test_one_snapshot_of_a_table_counts(source: MssqlFeedSource) -> None:
    """Also when it has expired: whoever begins another is told of it, and decides."""
    now = source.now()
    first = _begin(source, seconds=0, where="k > 1")
    assert (first.feed, first.table, first.token, first.path) == (FEED, TABLE, "t1", "/lake/claimed")
    assert first.where == "k > 1"
    assert first.begin == datetime(2026, 1, 1, 10, tzinfo=timezone.utc)
    assert first.by == "a person"
    assert now <= first.expires_at <= source.now()
    assert _begin(source, "t2", path="elsewhere", by="another") == first
    other = _begin(source, "t3", OTHERS, begin=first.begin - HOUR)
    assert other.where == ""
    assert source.snapshots() == [other, first]
    assert source.snapshots(FEED) == [first]
    assert not source.end_snapshot(FEED, TABLE, token="t2")
    assert source.end_snapshot(FEED, TABLE, token="t1")
    assert not source.end_snapshot(FEED, TABLE, token="t1")
    assert source.snapshots(FEED) == []
    assert _begin(source, "t2").token == "t2"


def test_of_many_that_begin_at_once_one_counts(source: MssqlFeedSource, database: Database) -> None:
    """All are told of the same one."""
    found: list[str] = []

    def begin(token: str) -> None:
        with closing(MssqlFeedSource(**database.description | {"lock_timeout": 20})) as own:
            found.append(_begin(own, token).token)

    threads = [threading.Thread(target=begin, args=(f"t{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == len(threads)
    assert {one.token for one in source.snapshots(FEED)} == set(found)
    assert len(set(found)) == 1


def test_marks_are_those_of_the_snapshot(source: MssqlFeedSource) -> None:
    """Each renews it; they go with it."""
    first = _begin(source)
    for mark in ("a", "A", "b"):
        _mark(source, mark)
    assert source.snapshot_marks(FEED, TABLE, token="t1") == {"a", "A", "b"}
    assert source.snapshot_marks(FEED, TABLE, token="t2") == set()
    assert source.snapshots(FEED)[0].expires_at > first.expires_at
    source.end_snapshot(FEED, TABLE, token="t1")
    assert source.snapshot_marks(FEED, TABLE, token="t1") == set()


def test_a_snapshot_that_was_given_up_gets_no_mark(source: MssqlFeedSource) -> None:
    """Found before anything is read, and again when the mark is written."""
    with pytest.raises(SnapshotError, match=r"t1 of table 'myservice\.Claimed' .* was given up"):
        _mark(source, "a")
    _begin(source)

    def replace() -> None:
        source.end_snapshot(FEED, TABLE, token="t1")
        _begin(source, "t2")

    with (
        pytest.raises(SnapshotError, match="or another snapshot has begun"),
        source.marking(FEED, TABLE, token="t1", mark="a", seconds=60),
    ):
        replace()
    for token in ("t1", "t2"):
        assert source.snapshot_marks(FEED, TABLE, token=token) == set()


def test_a_read_that_fails_gets_no_mark(source: MssqlFeedSource) -> None:
    """The error is the reader's own."""
    _begin(source)
    with pytest.raises(ZeroDivisionError), source.marking(FEED, TABLE, token="t1", mark="a", seconds=60):
        raise ZeroDivisionError
    assert source.snapshot_marks(FEED, TABLE, token="t1") == set()
    _mark(source, "a")


def test_a_session_that_was_lost_writes_no_mark(
    source: MssqlFeedSource, distant: MssqlFeedSource, line: Line
) -> None:
    """Nor does another one: what was read may be lost with it."""
    _begin(source)
    distant.database.retry = RetryPolicy(attempts=2, first_pause=0.0, longest_pause=0.0)
    with (
        pytest.raises(SourceUnavailableError) as caught,
        distant.marking(FEED, TABLE, token="t1", mark="a", seconds=60),
    ):
        line.cut()
    assert caught.value.transient
    assert source.snapshot_marks(FEED, TABLE, token="t1") == set()


def test_a_session_that_was_replaced_writes_no_mark(
    source: MssqlFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may connect again by itself; the new session does not know what the old one knew."""
    from airflow_changefeed.sources.mssql.connection.session import Session

    _begin(source)
    execute = Session.execute

    def forget(session: Session, sql: str, *values: Any) -> Any:
        done = execute(session, sql, *values)
        if "create table #" in sql:
            execute(session, "drop table #changefeed_marking")
        return done

    monkeypatch.setattr(Session, "execute", forget)
    with pytest.raises(SourceUnavailableError, match=r"table 'myservice\.Claimed' was read was lost"):
        _mark(source, "a")
    assert source.snapshot_marks(FEED, TABLE, token="t1") == set()


def test_texts_that_the_database_would_cut_are_refused(source: MssqlFeedSource) -> None:
    """All at once."""
    with pytest.raises(InvalidArgumentError, match=r"token must have 1 to 64 .*; path must have 1 to 4000"):
        _begin(source, "x" * 65, path="")
    with pytest.raises(InvalidArgumentError, match="mark must have 1 to 100"):
        _mark(source, "x" * 101)


def test_what_is_not_a_capture_is_named(source: MssqlFeedSource) -> None:
    """By every method."""
    missing = "myservice.Missing_changes"
    for call in (
        lambda: _begin(source, feed=missing),
        lambda: source.end_snapshot(missing, TABLE, token="t1"),
        lambda: source.snapshot_marks(missing, TABLE, token="t1"),
        lambda: source.snapshots(missing),
        lambda: source.order_bound(missing),
        lambda: source.first_waiting(missing),
        lambda: source.marking(missing, TABLE, token="t1", mark="a", seconds=1).__enter__(),
    ):
        with pytest.raises(CaptureNotFoundError, match=f"'{missing}' not found; .*{FEED}"):
            call()


# ---- what it holds back


def test_a_purge_keeps_what_a_snapshot_needs(database: Database, source: MssqlFeedSource) -> None:
    """From its begin on while it has not expired, and no event of then is older than the feed may hold."""
    with database.client() as client:
        client.results(f"insert into {OTHER} values (1)")
        now = source.now()
        source.seal(OTHERS, now)
        begin = now - HOUR
        _begin(source, feed=OTHERS, begin=begin)
        (purged,) = source.purge(OTHERS, now)
        assert purged.upto == Ulid.floor(begin).previous()
        client.results("update changefeed.snapshots set expires_at = changefeed.now()")
        (purged,) = source.purge(OTHERS, now)
        assert purged.upto == Ulid.floor(now).previous()


def test_numbers_of_the_outbox(database: Database, source: MssqlFeedSource) -> None:
    """The first that waits, and a bound above all that were committed."""
    assert source.first_waiting(FEED) is None
    with database.client() as client:
        client.results(f"insert into {TABLE} values (1)")
        first = source.first_waiting(FEED)
        assert first is not None
        bound = source.order_bound(FEED)
        assert first < bound
        client.results(f"insert into {TABLE} values (2)")
        assert source.first_waiting(FEED) == first
    source.drain(FEED)
    assert source.first_waiting(FEED) is None
    assert source.order_bound(FEED) > bound


def test_a_dropped_feed_leaves_no_snapshot(database: Database, source: MssqlFeedSource) -> None:
    """Nor marks; a new capture of its name begins without any."""
    table, feed = "myservice.Dropped", "myservice.Dropped_changes"
    with database.client() as client:
        client.results(f"create table {table} (k int not null primary key)")
        spec = CaptureSpec((TableCapture(table),), guard_schema=False, guard_table=False)
        source.enable_capture(spec)
        _begin(source, feed=feed)
        with source.marking(feed, table, token="t1", mark="a", seconds=60):
            pass
        client.results(f"exec changefeed.drop_feed N'{feed}'")
        for name in ("snapshots", "snapshot_marks"):
            assert client.value(f"select count(*) from changefeed.{name}") == 0


# ---- who may


@pytest.fixture
def seen_by(database: Database, captured: MssqlFeedSource) -> Iterator[dict[str, MssqlFeedSource]]:
    """Give the database as a reader and an operator of the feed see it."""
    password = f"Aa1!{secrets.token_hex(12)}"
    users = {role: f"snap_{role}_{os.getpid()}" for role in ("readers", "operators")}
    with database.client() as client:
        try:
            for role, user in users.items():
                client.results(f"create login {user} with password = '{password}'")
                client.results(f"create user {user} for login {user}")
                client.results(f"alter role [changefeed.{role}:{FEED}] add member {user}")
            for right in CHAINED if client.is_babelfish else ():
                client.results(f"grant {right} to [changefeed.users]")
            sources = {
                role: MssqlFeedSource(**database.description | {"user": user, "password": password})
                for role, user in users.items()
            }
            yield sources
            for one in sources.values():
                one.close()
        finally:
            for user in users.values():
                with suppress(Exception):
                    client.results(f"drop user {user}")
                    client.results(f"drop login {user}")


def test_operators_begin_and_readers_look(
    database: Database, source: MssqlFeedSource, seen_by: dict[str, MssqlFeedSource]
) -> None:
    """What holds back purges is of who may purge; rows are read with a right on the table itself."""
    reader, operator = seen_by["readers"], seen_by["operators"]
    with pytest.raises(PermissionDeniedError, match=f"only operators of feed .*changefeed.operators:{FEED}"):
        _begin(reader)
    claim = _begin(operator)
    assert reader.snapshots(FEED) == [claim]
    for call in (
        lambda: reader.end_snapshot(FEED, TABLE, token="t1"),
        lambda: _mark(reader, "a"),
    ):
        with pytest.raises(PermissionDeniedError, match="only operators"):
            call()
    _mark(operator, "a")
    assert reader.snapshot_marks(FEED, TABLE, token="t1") == {"a"}
    with pytest.raises(FeedSetupError, match=r"ask a DBA for: grant select on \[myservice\]\.\[Claimed\] to"):
        reader.table_columns(FEED, TABLE)
    with database.client() as client:
        user = reader.database.server.user
        client.results(f"grant select on {TABLE} to {user}")
    assert list(reader.stream_table(FEED, TABLE, KeyRange())) is not None
    assert operator.end_snapshot(FEED, TABLE, token="t1")
