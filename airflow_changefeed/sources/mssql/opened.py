# SPDX-License-Identifier: Apache-2.0
"""A feed in SQL Server that was found for one operation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_changefeed.core.feed import Seal, Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources.base import FeedState, RangePart
from airflow_changefeed.sources.mssql.consumers.cursors import MssqlCursors
from airflow_changefeed.sources.mssql.feed.catalog import load_feed
from airflow_changefeed.sources.mssql.feed.control import MssqlControl
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.feed.reader import MssqlReader
from airflow_changefeed.sources.mssql.install.identity import MssqlIdentity

if TYPE_CHECKING:
    import pyarrow as pa


class MssqlOpenFeed:
    """Implements :class:`~airflow_changefeed.sources.base.OpenFeed`."""

    def __init__(self, source: MssqlOpening, found: MssqlFeed) -> None:
        self._source = source
        self._found = found
        self.info = found.info
        self.database = source.identity()

    def schema(self) -> pa.Schema:
        """See the protocol, for all that follows."""
        from airflow_changefeed.sources.mssql.capture.query import feed_schema

        return feed_schema(self._found)

    def seal(self, until: datetime) -> dict[Shard, Seal]:
        return self._source.seal(self.info.name, until)

    def state(self, consumer: str) -> FeedState:
        feed = self.info.name
        marks = self._source.stale_marks(feed)
        cursors = {row.shard: row for row in self._source.cursors(feed, consumer)}
        return FeedState(marks, cursors, {status.shard: status for status in self._source.shards(feed)})

    def counts(self, ranges: Mapping[Shard, Sequence[UlidRange]]) -> dict[Shard, list[int]]:
        return {shard: self._source.count(self.info.name, shard, own) for shard, own in ranges.items()}

    def split(self, shard: Shard, range_: UlidRange, parts: int, *, rows: int) -> list[RangePart]:
        return self._source.split(self.info.name, shard, range_, parts, rows=rows)

    def begin_export(self, consumer: str, starts: Mapping[Shard, Ulid], *, by: str, above: int = 0) -> int:
        if starts:
            self._source.begin_consumer(consumer, self.info.name, starts, by=by)
        return self._source.next_attempt(self.info.name, above=above)


class MssqlOpening(MssqlIdentity, MssqlControl, MssqlReader, MssqlCursors):
    """The part of the source that opens feeds."""

    @contextmanager
    def open(self, feed: str) -> Iterator[MssqlOpenFeed]:
        """See :class:`~airflow_changefeed.sources.base.FeedReader`; holds no connection."""
        schema = self.database.schema
        yield MssqlOpenFeed(
            self,
            self.database.ask(lambda session: load_feed(session, schema, feed, is_fresh=True), feed=feed),
        )
