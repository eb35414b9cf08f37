# SPDX-License-Identifier: Apache-2.0
"""A feed in SQLite that was found for one operation."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_changefeed.core.feed import Seal, Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.base import FeedState, RangePart
from airflow_changefeed.sources.sqlite.consumers.cursor_rows import rows_by_shard
from airflow_changefeed.sources.sqlite.consumers.cursors import SqliteCursors
from airflow_changefeed.sources.sqlite.feed.control import SqliteControl, draw_attempt
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, load_again, load_feed
from airflow_changefeed.sources.sqlite.feed.reader import (
    STALE,
    SqliteReader,
    count,
    feed_schema,
    known_shards,
    split,
)

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
