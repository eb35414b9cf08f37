# SPDX-License-Identifier: Apache-2.0
"""The connection is lost in the middle of a call: at each message of it, and while it waits for a lock."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import PurgedError, SourceUnavailableError
from airflow_changefeed.sources.mssql import MssqlFeedSource
from airflow_changefeed.sources.mssql.connection import pool
from airflow_changefeed.sources.mssql.connection.pool import RetryPolicy
from tests.integration.mssql.line import Line, cut_everywhere
from tests.integration.mssql.server import Client, Database

_DAY = timedelta(days=1)
_START = datetime(2020, 1, 1, tzinfo=timezone.utc)
_SHARDS = (0, 1)
_EVENTS = 3


class Feed:
    """A feed that gets three events in each of two shards a day, and is reached directly or by a line."""

    def __init__(self, database: Database, client: Client, name: str) -> None:
        self.name = f"myservice.{name}"
        self.client = client
        self.database = database
        self.direct = MssqlFeedSource(**database.description | {"lock_timeout": 20})
        self.keys: list[int] = []
        client.results(f"create table {self.name} (EventID int not null primary key)")
        client.results(f"exec changefeed.setup_feed N'{self.name}', @outbox = 1")

    def write(self, day: int) -> None:
        """Write a day's events, of both shards alike; the second shard's keys are negative."""
        keys = range(day * _EVENTS + 1, (day + 1) * _EVENTS + 1)
        self.keys += keys
        hint = f"{(_START + day * _DAY):%Y-%m-%d}"
        for key in keys:
            self.client.results(
                f"insert into {self.name} (EventID) values ({key}), ({-key}); "
                f"insert into [changefeed].[outbox:{self.name}] (shard_id, time_hint, EventID) "
                f"values (0, '{hint}', {key}), (1, '{hint}', {-key})"
            )

    def read(self, shard: int, after: Ulid = Ulid.MIN) -> list[tuple[Ulid, int]]:
        """Read a shard to its head, a few rows at a time."""
        found: list[tuple[Ulid, int]] = []
        while events := self.direct.read_feed(self.name, shard, after, 5).events:
            found += [(event.ulid, abs(event.key[0])) for event in events]
            after = events[-1].ulid
        return found

    def count(self, shard: int, client: Client | None = None) -> int:
        """Count the rows of a shard that are in the feed."""
        return int(
            (client or self.client).value(
                f"select count(*) from [changefeed].[feed:{self.name}] where shard_id = {shard}"
            )
        )

    def assert_whole(self) -> None:
        """Every event is there once, in order."""
        for shard in _SHARDS:
            found = self.read(shard)
            assert [key for _, key in found] == self.keys
            assert sorted({ulid for ulid, _ in found}) == [ulid for ulid, _ in found]


def _read(source: MssqlFeedSource, feed: str, end: datetime) -> None:
    source.read_feed(feed, 0, Ulid.MIN)


def _stream(source: MssqlFeedSource, feed: str, end: datetime) -> None:
    range_ = UlidRange(Ulid.MIN, Ulid.floor(end))
    assert [batch.num_rows for batch in source.stream(feed, 0, range_, batch_rows=2)]


def _drain(source: MssqlFeedSource, feed: str, end: datetime) -> None:
    source.drain(feed)


def _seal(source: MssqlFeedSource, feed: str, end: datetime) -> None:
    assert [seal.until for seal in source.seal(feed, end).values()] == [end, end]


def _purge(source: MssqlFeedSource, feed: str, end: datetime) -> None:
    source.purge(feed, end, batch_rows=1)


CALLS = {"page": _read, "range": _stream, "drain": _drain, "seal": _seal}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_cut_at_any_message(
    database: Database, client: Client, line: Line, distant: MssqlFeedSource, name: str
) -> None:
    """It says that the server is unavailable, and whoever calls again finds every event once, in order."""
    feed = Feed(database, client, f"Cut_{name}")

    def prepare(number: int) -> None:
        feed.write(number)
        if name == "range":
            feed.direct.drain(feed.name)
        # A connection of its own for each cut.
        distant.close()
        distant.now()

    def call(number: int) -> None:
        with suppress(SourceUnavailableError):
            CALLS[name](distant, feed.name, _START + (number + 1) * _DAY)

    cuts = 0
    for number in cut_everywhere(line, prepare, call):
        CALLS[name](feed.direct, feed.name, _START + (number + 1) * _DAY)
        feed.assert_whole()
        cuts = number
    assert cuts >= 4


def test_a_purge_cut_at_any_message(
    database: Database, client: Client, line: Line, distant: MssqlFeedSource
) -> None:
    """It removes a part or all of what it would have; called again, it removes the rest and nothing else."""
    feed = Feed(database, client, "Cut_purge")
    feed.write(0)

    def prepare(number: int) -> None:
        feed.write(number + 1)
        feed.direct.seal(feed.name, _START + (number + 2) * _DAY)
        distant.close()
        distant.now()

    def call(number: int) -> None:
        with suppress(SourceUnavailableError):
            _purge(distant, feed.name, _START + (number + 1) * _DAY)

    cuts = 0
    for number in cut_everywhere(line, prepare, call):
        before = _START + (number + 1) * _DAY
        _purge(feed.direct, feed.name, before)
        for shard in _SHARDS:
            with pytest.raises(PurgedError):
                feed.read(shard)
            kept = feed.read(shard, Ulid.floor(before))
            assert [key for _, key in kept] == feed.keys[-_EVENTS:]
        cuts = number
    assert cuts >= 4


def test_connections_cut_between_calls_are_not_noticed(
    line: Line, distant: MssqlFeedSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was kept for the next call, and ended meanwhile, is replaced."""
    monkeypatch.setattr(pool, "TRUST_SECONDS", 0.0)
    distant.now()
    line.cut()
    assert distant.now()


def test_a_lost_connection_ends_all_that_were_kept(line: Line, distant: MssqlFeedSource) -> None:
    """The first call after a fail-over may fail, the second has a connection of its own."""
    with distant.database.connect(), distant.database.connect(), distant.database.connect():
        pass
    line.cut()
    with suppress(SourceUnavailableError):
        distant.now()
    assert distant.now()


def test_a_look_cut_at_any_message_is_put_again(
    database: Database, client: Client, line: Line, distant: MssqlFeedSource
) -> None:
    """On a kept connection, nothing is asked before; one that was lost is not told of."""
    feed = Feed(database, client, "Cut_look")
    feed.write(0)
    feed.direct.drain(feed.name)

    def prepare(number: int) -> None:
        distant.close()
        distant.now()

    def call(number: int) -> None:
        assert set(distant.poll(feed.name, "reader").new_events) == set(_SHARDS)

    # A question and its answer.
    assert list(cut_everywhere(line, prepare, call)) == [0, 1, 2]
    line.cut()
    call(0)


@pytest.mark.parametrize("name", ["drain", "seal", "purge"])
def test_a_call_cut_when_half_done(
    database: Database, client: Client, line: Line, distant: MssqlFeedSource, name: str
) -> None:
    """One that did a shard and waits for the next is whole after it was called again."""
    feed = Feed(database, client, f"Half_{name}")
    feed.write(0)
    feed.direct.seal(feed.name, _START + _DAY)
    feed.write(1)
    call = {**CALLS, "purge": _purge}[name]
    end = _START + (1 if name == "purge" else 2) * _DAY
    # Nobody calls again but the test.
    distant.database.retry = RetryPolicy(attempts=1)
    first_shard_is_done = 0 if name == "purge" else 2 * _EVENTS
    said: list[BaseException] = []

    def wait() -> None:
        try:
            call(distant, feed.name, end)
        except BaseException as error:
            said.append(error)

    with database.client() as holder:
        # A purge needs no lock of the shard, but that of each row.
        holder.results(
            f"begin transaction; update [changefeed].[feed:{feed.name}] set ulid = ulid where shard_id = 1"
            if name == "purge"
            else f"begin transaction; declare @result int; exec [changefeed].[feed_write_lock:{feed.name}] "
            "@shard_id = 1, @lock_timeout = 10000, @lock_result = @result output"
        )
        waiting = threading.Thread(target=wait)
        waiting.start()
        deadline = time.monotonic() + 60
        while feed.count(0) != first_shard_is_done:
            assert time.monotonic() < deadline
            assert not said
        line.cut()
        waiting.join(timeout=60)
        assert feed.count(1, holder) == _EVENTS
        holder.results("rollback transaction")
    assert [type(error) for error in said] == [SourceUnavailableError]
    call(feed.direct, feed.name, end)
    if name == "purge":
        assert [feed.count(shard) for shard in _SHARDS] == [0, 0]
    else:
        feed.assert_whole()
