# SPDX-License-Identifier: Apache-2.0
"""Whether a limited stream leaves something open."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed import adbc
from airflow_changefeed.sources.sqlite.feed.adbc import stream_adbc


def test_a_limited_bulk_read_closes_adbc_before_it_looks_for_purges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies of SQLite that have one file open in one process release each other's locks (ADR 0003)."""
    path = str(tmp_path / "feeds.db")
    user = sqlite3.connect(path, isolation_level=None)
    user.execute("create table t (id integer primary key)")
    source = SqliteFeedSource(path, bulk_reader="adbc")
    source.set_up_feed("t")
    for key in range(5):
        user.execute("insert into t values (?)", (key,))
        user.execute('insert into "changefeed.outbox:t" (id) values (?)', (key,))
    source.drain("t")
    user.close()
    events: list[str] = []

    def noted(*arguments: Any) -> Iterator[Any]:
        events.append("adbc opens")
        try:
            yield from stream_adbc(*arguments)
        finally:
            events.append("adbc closes")

    connect = SqliteDatabase.connect

    @contextmanager
    def connected(self: SqliteDatabase, **options: Any) -> Iterator[Any]:
        events.append("sqlite3 opens")
        with connect(self, **options) as connection:
            yield connection
        events.append("sqlite3 closes")

    monkeypatch.setattr(adbc, "stream_adbc", noted)
    monkeypatch.setattr(SqliteDatabase, "connect", connected)
    batches = list(source.stream("t", 0, UlidRange(Ulid.MIN, Ulid.MAX), limit=2))
    assert sum(batch.num_rows for batch in batches) == 2
    assert events == [
        "sqlite3 opens",
        "sqlite3 closes",
        "adbc opens",
        "adbc closes",
        "sqlite3 opens",
        "sqlite3 closes",
    ]
