# SPDX-License-Identifier: Apache-2.0
"""Reading feeds in SQL Server."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.cursor import check_consumer
from airflow_changefeed.core.feed import Event, FeedInfo, Page, Shard, ShardStatus, StaleMark, parse_shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources.base import MAX_PAGE_SIZE, Ask, Capabilities, FeedStatus, RangePart
from airflow_changefeed.sources.mssql.connection.session import Record, Session
from airflow_changefeed.sources.mssql.feed.catalog import MssqlCalls, load_feed, load_feeds
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed, stored_type
from airflow_changefeed.sources.mssql.feed.poll import poll
from airflow_changefeed.sources.mssql.names import quote
from airflow_changefeed.sources.shared import (
    MAX_PARTS,
    answers,
    check_count,
    check_stream,
    only,
    shard_status,
    stale_mark,
    wanted_of,
)

if TYPE_CHECKING:
    import pyarrow as pa


class MssqlReader(MssqlCalls):
    """
    The part of the source that reads.

    Of all its methods only :meth:`read_feed` writes, when it drains, and those that give resource versions,
    when they note that columns changed.
    """

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            parallel_writers=True, needs_install=True, set_triggers=True, transaction_ids=True
        )

    def now(self) -> datetime:
        return self.database.now()

    def feeds(self) -> list[FeedInfo]:
        found = self.database.ask(lambda session: load_feeds(session, self.database.schema, is_noted=True))
        return [feed.info for feed in found or []]

    def feed(self, feed: str) -> FeedInfo:
        schema = self.database.schema
        return self.database.ask(
            lambda session: load_feed(session, schema, feed, is_fresh=True, is_noted=True).info, feed=feed
        )

    def shards(self, feed: str) -> list[ShardStatus]:
        (rows,) = self._ask(feed, "shards")
        return statuses(rows)

    def poll(self, feed: str, consumer: str) -> FeedStatus:
        check_consumer(consumer)
        return only(self.poll_many([(feed, consumer)]))

    def poll_many(self, asks: Sequence[Ask]) -> list[FeedStatus | Exception]:
        feeds = {feed for feed, _ in asks}
        facts = {"feed": asks[0][0], "consumer": asks[0][1]} if len(asks) == 1 else {}
        if not facts and len(feeds) == 1:
            facts = {"feed": asks[0][0]}
        wanted = wanted_of(asks)
        if not wanted:
            return answers(asks, {})
        schema = self.database.schema
        return answers(asks, self.database.ask(lambda session: poll(session, schema, wanted), **facts))

    def read_feed(self, feed: str, shard: Shard, after: Ulid, page_size: int = 1000) -> Page:
        check_count("page_size", page_size, MAX_PAGE_SIZE, " rows")

        def page(session: Session, found: MssqlFeed) -> Page:
            arguments = {
                "shard_id": found.to_sql(shard),
                "cursor": after.bytes,
                "pagesize": page_size,
                "lock_timeout": self.database.lock_timeout_ms,
            }
            call, *values = found.call("read_feed", arguments)
            names = ", ".join(["ulid", *(quote(column.name) for column in found.fed_keys)])
            columns = key_definitions(found, "ulid binary(16)")
            # Dropped first, as a batch that failed left it behind.
            rows = session.rows(
                f"drop table if exists #read; create table #read ({columns}); "
                f"{call}; select {names} from #read order by ulid; drop table #read",
                *values,
            )
            return Page(shard, tuple(_event(found, shard, row) for row in rows))

        # What a page orders stays ordered, and the same cursor gives it again.
        return self._ask_feed(feed, page, shard=shard)

    def count(self, feed: str, shard: Shard, ranges: Sequence[UlidRange]) -> list[int]:
        (rows,) = self._ask(
            feed, "count_feed", lambda found: count_arguments(found, shard, ranges), shard=shard
        )
        return counted(rows)

    def schema(self, feed: str) -> pa.Schema:
        from airflow_changefeed.sources.mssql.capture.query import feed_schema

        return self._ask_feed(feed, lambda session, found: feed_schema(found), is_fresh=True)

    def stream(
        self,
        feed: str,
        shard: Shard,
        range_: UlidRange,
        *,
        batch_rows: int = 65_536,
        on_missing: str = "fail",
        columns: Collection[str] | None = None,
        limit: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        from airflow_changefeed.sources.mssql.feed.arrow import RangeStream

        check_stream(batch_rows, on_missing, limit)
        yield from RangeStream(
            self.database, feed, shard, range_, batch_rows, on_missing, columns, limit
        ).batches()

    def stale_marks(self, feed: str) -> list[StaleMark]:
        (rows,) = self._ask(feed, "list_stale_marks")
        return [stale_mark(row) for row in rows]


def count_arguments(found: MssqlFeed, shard: Shard, ranges: Sequence[UlidRange]) -> dict[str, Any]:
    """Return the arguments of ``count_feed``."""
    raw = b"".join(range_.after.bytes + range_.upto.bytes for range_ in ranges)
    return {"shard_id": found.to_sql(shard), "ranges": raw}


def counted(rows: list[Record]) -> list[int]:
    """Return the counts of ``count_feed``, in the order of its ranges."""
    return [int(row["rows"]) for row in sorted(rows, key=lambda row: int(row["place"]))]


def split(
    session: Session, found: MssqlFeed, shard: Shard, range_: UlidRange, parts: int, rows: int | None
) -> list[RangePart]:
    """Split a range into parts of about the same number of events."""
    check_count("parts", parts, MAX_PARTS)
    arguments = {
        "shard_id": found.to_sql(shard),
        "after": range_.after.bytes,
        "upto": range_.upto.bytes,
        "parts": parts,
        "rows": rows,
    }
    pieces, start = [], range_.after
    for row in session.records(*found.call("split_feed", arguments)):
        end = Ulid.of_bytes(row["upto"])
        pieces.append(RangePart(UlidRange(start, end), int(row["rows"])))
        start = end
    return pieces


def statuses(rows: list[Record]) -> list[ShardStatus]:
    """Return the state of each shard, from the rows of ``shards``."""
    return [shard_status(parse_shard(row["shard_id"]), row) for row in by_shard(rows)]


def by_shard(rows: list[Record]) -> list[Record]:
    """Sort rows by shard, as Python sorts them: SQL Server sorts UUIDs by their last bytes first."""
    return sorted(rows, key=lambda row: row["shard_id"])


def key_definitions(feed: MssqlFeed, *first: str) -> str:
    """Return the columns of a temporary table for keys, which take the collation of the table's own."""
    definitions = [f"{column} not null" for column in first]
    for column in feed.fed_keys:
        collation = feed.key_collations[column.name]
        collate = f" collate {collation}" if collation else ""
        definitions.append(f"{quote(column.name)} {stored_type(column)}{collate} not null")
    return ", ".join(definitions)


def _event(feed: MssqlFeed, shard: Shard, row: tuple[Any, ...]) -> Event:
    """Return an event of its ULID and its fed keys; the others are the ULID and the shard themselves."""
    ulid = Ulid.of_bytes(row[0])
    if len(row) - 1 == len(feed.info.key_columns):
        return Event(ulid, tuple(row[1:]))
    given = dict(zip((column.name for column in feed.fed_keys), row[1:], strict=True))
    return Event(
        ulid,
        tuple(
            given.get(column.name, ulid.bytes if column.name.lower() == "ulid" else shard)
            for column in feed.info.key_columns
        ),
    )
