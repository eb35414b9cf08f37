# SPDX-License-Identifier: Apache-2.0
"""Snapshots that have begun: who may begin them, and that a lost session writes no mark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.exceptions import (
    FeedSetupError,
    InvalidArgumentError,
    PermissionDeniedError,
    SourceUnavailableError,
)
from airflow_changefeed.sources.base_capture import KeyRange, SnapshotClaim
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection.pool import RetryPolicy
from tests.integration.mssql.line import Line
from tests.integration.mssql.server import Database

TABLE, FEED = "myservice.Claimed", "myservice.Claimed_changes"
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
    """Capture a table."""
    with database.client() as client, database.source() as source:
        client.results(f"create table {TABLE} (k int not null primary key)")
        source.enable_capture(CaptureSpec((TableCapture(TABLE),), guard_schema=False, guard_table=False))
        yield source


@pytest.fixture
def source(captured: MssqlFeedSource) -> Iterator[MssqlFeedSource]:
    """Give the source; what a test has begun ends with it."""
    yield captured
    for one in captured.snapshots():
        captured.end_snapshot(one.feed, one.table, token=one.token)


def _begin(source: MssqlFeedSource, token: str = "t1", path: str = "/lake/claimed") -> SnapshotClaim:
    begin = datetime(2026, 1, 1, 10, tzinfo=timezone.utc)
    return source.begin_snapshot(
        FEED, TABLE, token=token, path=path, begin=begin, by="a person", seconds=3600
    )


def _mark(source: MssqlFeedSource, mark: str = "a") -> None:
    with source.marking(FEED, TABLE, token="t1", mark=mark, seconds=7200):
        pass


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

    def forget(session: Session, sql: str, *values: Any, **options: Any) -> Any:
        done = execute(session, sql, *values, **options)
        if "create table #" in sql:
            execute(session, "drop table #changefeed_marking")
        return done

    monkeypatch.setattr(Session, "execute", forget)
    with pytest.raises(SourceUnavailableError, match=r"table 'myservice\.Claimed' was read was lost"):
        _mark(source)
    assert source.snapshot_marks(FEED, TABLE, token="t1") == set()


def test_texts_that_the_database_would_cut_are_refused(source: MssqlFeedSource) -> None:
    """All at once."""
    with pytest.raises(InvalidArgumentError, match=r"token must have 1 to 64 .*; path must have 1 to 4000"):
        _begin(source, "x" * 65, path="")
    with pytest.raises(InvalidArgumentError, match="mark must have 1 to 100"):
        _mark(source, "x" * 101)


# ---- who may


@pytest.fixture
def seen_by(database: Database, captured: MssqlFeedSource) -> Iterator[dict[str, MssqlFeedSource]]:
    """Give the database as a reader and an operator of the feed see it."""
    with ExitStack() as stack:
        with database.client() as client:
            for right in CHAINED if client.is_babelfish else ():
                client.results(f"grant {right} to [changefeed.users]")
        member = f"alter role [changefeed.{{role}}:{FEED}] add member {{{{user}}}}"
        yield {
            role: stack.enter_context(stack.enter_context(database.login(member.format(role=role))).source())
            for role in ("readers", "operators")
        }


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
        lambda: _mark(reader),
    ):
        with pytest.raises(PermissionDeniedError, match="only operators"):
            call()
    _mark(operator)
    assert reader.snapshot_marks(FEED, TABLE, token="t1") == {"a"}
    with pytest.raises(FeedSetupError, match=r"ask a DBA for: grant select on \[myservice\]\.\[Claimed\] to"):
        reader.table_columns(FEED, TABLE)
    with database.client() as client:
        user = reader.database.server.user
        client.results(f"grant select on {TABLE} to {user}")
    assert list(reader.stream_table(FEED, TABLE, KeyRange())) is not None
    assert operator.end_snapshot(FEED, TABLE, token="t1")
