# SPDX-License-Identifier: Apache-2.0
"""The embedded source, put together from its parts; and a feed that was found for one operation."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.feed import Seal, Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import FeedSetupError, InvalidArgumentError
from airflow_changefeed.sources.base import FeedState, RangePart
from airflow_changefeed.sources.sqlite.capture.control import SqliteCapture
from airflow_changefeed.sources.sqlite.capture.snapshots import SqliteSnapshots
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase, read_connection
from airflow_changefeed.sources.sqlite.consumer_session import SqliteDeadLetters
from airflow_changefeed.sources.sqlite.consumers import SqliteLeases
from airflow_changefeed.sources.sqlite.cursors import SqliteCursors, rows_by_shard
from airflow_changefeed.sources.sqlite.doctor import SqliteInspect
from airflow_changefeed.sources.sqlite.feed.control import SqliteControl, draw_attempt
from airflow_changefeed.sources.sqlite.feed.history import SqliteHistory
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, load_again, load_feed
from airflow_changefeed.sources.sqlite.feed.overview import SqliteOverview
from airflow_changefeed.sources.sqlite.feed.reader import (
    STALE,
    SqliteReader,
    count,
    feed_schema,
    known_shards,
    split,
)
from airflow_changefeed.sources.sqlite.setup import SqliteSetup
from airflow_changefeed.sources.sqlite.versions import SqliteIdentity

if TYPE_CHECKING:
    import pyarrow as pa


class SqliteOpenFeed:
    """Implements :class:`~airflow_changefeed.sources.base.OpenFeed` on one connection."""

    def __init__(self, source: SqliteOpening, tables: FeedTables) -> None:
        self._source = source
        self._tables = tables
        self.info = tables.info
        self.database = tables.database
        self.opened_at = source.database.now()

    def schema(self) -> pa.Schema:
        return feed_schema(self._tables)

    @contextmanager
    def _asked(self) -> Iterator[sqlite3.Connection]:
        """Give errors our names; a table that is missing may be that of a feed that was dropped meanwhile."""
        try:
            with self._source.database.named_errors():
                yield self._tables.connection
        except FeedSetupError:
            load_again(self._tables)
            raise

    def seal(self, until: datetime) -> dict[Shard, Seal]:
        with self._asked():
            return self._source.seal_on(self._tables, until)

    def state(self, consumer: str) -> FeedState:
        feed = self.info.name
        with self._asked() as connection:
            marks = STALE.find(connection, {"feed": feed})
            rows = rows_by_shard(connection, consumer, feed)
            known = connection.execute(
                'select floor_ms from "changefeed.registry" '
                "where feed = ? and kind = ? and shard_key_type = ?",
                (feed, self.info.kind.value, self.info.shard_key_type),
            ).fetchone()
            tables = replace(self._tables, floor_ms=known[0]) if known else load_again(self._tables)
            shards = known_shards(tables)
        return FeedState(marks, rows, {one.shard: one for one in shards})

    def counts(self, ranges: Mapping[Shard, Sequence[UlidRange]]) -> dict[Shard, list[int]]:
        with self._asked():
            return {shard: count(self._tables, shard, own) for shard, own in ranges.items()}

    def split(
        self, shard: Shard, range_: UlidRange, parts: int, *, rows: int | None = None
    ) -> list[RangePart]:
        with self._asked() as connection, self._source.database.snapshot(connection):
            return split(self._tables, shard, range_, parts, rows)

    def begin_export(self, consumer: str, starts: Mapping[Shard, Ulid], *, by: str, above: int = 0) -> int:
        with self._asked() as connection, self._source.database.write(connection):
            attempt = draw_attempt(connection, self.info.name, above)
            self._source.begin_on(self._tables, consumer, starts, by=by)
        return attempt


class SqliteOpening(SqliteControl, SqliteReader, SqliteCursors):
    """The part of the source that opens feeds."""

    @contextmanager
    def open(self, feed: str) -> Iterator[SqliteOpenFeed]:
        with self.database.connect() as connection:
            yield SqliteOpenFeed(self, load_feed(connection, feed))


class SqliteFeedSource(
    SqliteIdentity,
    SqliteCapture,
    SqliteSnapshots,
    SqliteOpening,
    SqliteOverview,
    SqliteHistory,
    SqliteSetup,
    SqliteLeases,
    SqliteDeadLetters,
    SqliteInspect,
):
    """
    Feeds in a SQLite file; implements :class:`~airflow_changefeed.sources.base.FeedSource`.

    Holds nothing open between calls, so it may be used from any thread and kept across forks; a feed that is
    open has a connection, of one thread.

    :param path: of the file, which holds the event tables and gets the feeds beside them.
    :param lock_timeout: seconds to wait for another writer, 0 to 86,400.
    :param bulk_reader: ``sqlite3``, or ``adbc`` for a process in which nobody else has the file open
        (ADR 0003).
    :raises InvalidArgumentError: an option is out of range.
    """

    def __init__(self, path: str, *, lock_timeout: float = 60.0, bulk_reader: str = "sqlite3") -> None:
        # All arguments, by their names.
        self._read, missing, problems = read_connection(locals())
        problems += [f"{name} is missing; set it to the SQLite file" for name in missing]
        InvalidArgumentError.collect(f"SQLite source {path!r}", problems)
        self.database = SqliteDatabase(self._read["path"], self._read["lock_timeout"])
        self.bulk_reader: str = self._read["bulk_reader"]

    def describe(self) -> dict[str, Any]:
        """Return what ``open_source`` needs to open the same file elsewhere."""
        return {"type": "sqlite", **self._read}

    def connected(self) -> AbstractContextManager[None]:
        return self.database.keep()

    def close(self) -> None:
        """Do nothing: no connection outlives the call that opened it."""
