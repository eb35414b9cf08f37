# SPDX-License-Identifier: Apache-2.0
"""
Reading and polling feeds in SQLite.

A poll is a select that names its tables, and serialized writers have user-defined columns. So a feed is
assumed to have an outbox until proven otherwise; later polls of this process reuse the result, and each
checks that it still holds.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.cursor import check_consumer
from airflow_changefeed.core.feed import (
    Event,
    FeedInfo,
    FeedKind,
    Page,
    Shard,
    ShardStatus,
    StaleMark,
    shard_text,
)
from airflow_changefeed.core.ulid import HighWater, Ulid, UlidRange
from airflow_changefeed.exceptions import ColumnTypeError, CursorBeyondFeedError
from airflow_changefeed.sources.base import MAX_PAGE_SIZE, Ask, Capabilities, FeedStatus, RangePart
from airflow_changefeed.sources.shared import (
    MAX_PARTS,
    FeedPoll,
    answers,
    as_ulid,
    check_count,
    check_purged_upto,
    check_stream,
    only,
    shard_status,
    stale_mark,
    wanted_of,
)
from airflow_changefeed.sources.sqlite.capture.query import unexportable_error
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.names import KNOWN, FeedTables, load_feed, load_feeds
from airflow_changefeed.sources.sqlite.records import Records, records
from airflow_changefeed.sources.sqlite.versions import check_beneath

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_changefeed.sources.sqlite.feed.arrow import RangeQuery


#: Feeds that do not match the first assumption, by file and name, with their tables' definitions.
_LEARNED: dict[tuple[str, str], tuple[FeedTables, str]] = {}

#: A row of a poll: the event table's definition, then shard, head, whether rows wait, consumer and cursor.
Row = tuple[str | None, Any, bytes | None, int, str | None, bytes | None]


def poll(database: SqliteDatabase, wanted: Mapping[str, Sequence[str]]) -> dict[str, FeedPoll | Exception]:
    """
    Poll feeds, each for its consumers.

    :return: for each feed what was found; or FeedNotFoundError, FeedSetupError where its event table was
        dropped or renamed, or another error.
    """
    found: dict[str, FeedPoll | Exception] = {}
    at = database.now()
    with database.connect() as connection:
        for feed, consumers in wanted.items():
            try:
                tables, rows = _query(connection, database, feed, consumers)
                found[feed] = FeedPoll(at, *_read(tables, rows))
            except Exception as error:
                if isinstance(error, sqlite3.Error) and "no such" not in str(error):
                    raise  # of the file, not of the feed
                found[feed] = error
    return found


def _query(
    connection: sqlite3.Connection, database: SqliteDatabase, feed: str, consumers: Sequence[str]
) -> tuple[FeedTables, list[Row]]:
    learned = _LEARNED.get((database.path, feed))
    tables = replace(learned[0], connection=connection) if learned else _with_outbox(connection, feed)
    definition = learned[1] if learned else None
    values = {
        "feed": tables.info.name,
        "kind": tables.info.kind.value,
        "consumers": json.dumps(list(consumers)),
    }
    try:
        rows: list[Row] = connection.execute(poll_sql(tables), values).fetchall()
    except sqlite3.OperationalError as error:
        if "no such" not in str(error):
            raise
        rows = []  # the feed does not have these tables
    if not rows or rows[0][0] is None or definition not in (None, rows[0][0]):
        with database.snapshot(connection):
            tables = load_feed(connection, feed)
            values |= {"feed": tables.info.name, "kind": tables.info.kind.value}
            rows = connection.execute(poll_sql(tables), values).fetchall()
        if tables.is_serialized or tables.capture is not None:
            _LEARNED[database.path, feed] = (tables, rows[0][0] or "")
        else:
            _LEARNED.pop((database.path, feed), None)
    elif tables.capture is None and "changefeed_event" in rows[0][0]:
        # From the next poll on, all shards of its outbox are found at once.
        _LEARNED[database.path, feed] = (load_feed(connection, feed), rows[0][0])
    return tables, rows


def _read(
    tables: FeedTables, rows: Sequence[Row]
) -> tuple[list[tuple[Shard, Ulid | None, bool]], dict[str, dict[Shard, Ulid]]]:
    """Return the shards, and the cursors of each consumer; a shard has a row for each of its cursors."""
    shards: dict[Shard, tuple[Shard, Ulid | None, bool]] = {}
    cursors: dict[str, dict[Shard, Ulid]] = {}
    for _, value, head, waits, consumer, cursor in rows:
        if value is None:
            continue
        shard = tables.from_sql(value)
        shards.setdefault(shard, (shard, as_ulid(head), bool(waits)))
        if consumer is not None and cursor is not None:
            cursors.setdefault(consumer, {})[shard] = Ulid.of_bytes(cursor)
    return list(shards.values()), cursors


def _with_outbox(connection: sqlite3.Connection, feed: str) -> FeedTables:
    """Return the tables of a feed with an outbox, with all that is known except what a poll does not need."""
    return FeedTables(connection, FeedInfo(feed, FeedKind.OUTBOX, "int", (), ()), 0)


def poll_sql(tables: FeedTables) -> str:
    """Return the select, which gives one row at least where there is such a feed, and none where not."""
    condition = tables.condition_of(f"{KNOWN}.id")
    return f"""
        with {tables.known_shards}
        select
            (select sql from sqlite_master where type = 'table' and name = :feed collate nocase),
            {KNOWN}.id,
            (select max({tables.ulid}) from {tables.feed} where {condition}),
            {KNOWN}.has_outbox,
            c.consumer,
            c.ulid
        from "changefeed.registry" as r
        left join {KNOWN}
        left join "changefeed.consumer" as c
            on c.feed = r.feed and c.consumer in (select value from json_each(:consumers))
            and c.shard = cast({KNOWN}.id as text)
        where r.feed = :feed and r.kind = :kind
        order by {KNOWN}.id
    """


#: The marks of inserted history.
STALE = Records("stale", stale_mark, "number")


class SqliteReader:
    """
    The part of the source that reads.

    Of all its methods only :meth:`read_feed` writes, when it drains, and those that give resource versions,
    when they note that columns changed.
    """

    database: SqliteDatabase
    bulk_reader: str

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            parallel_writers=False, needs_install=False, set_triggers=False, transaction_ids=False
        )

    def now(self) -> datetime:
        return self.database.now()

    def feeds(self) -> list[FeedInfo]:
        with self.database.connect() as connection:
            check_beneath(self.database, connection)
            return [tables.info for tables in load_feeds(connection)]

    def feed(self, feed: str) -> FeedInfo:
        with self.database.connect() as connection:
            check_beneath(self.database, connection, feed)
            return load_feed(connection, feed).info

    def shards(self, feed: str) -> list[ShardStatus]:
        with self.database.connect() as connection, self.database.snapshot(connection):
            tables = load_feed(connection, feed)
            return known_shards(tables)

    def poll(self, feed: str, consumer: str) -> FeedStatus:
        check_consumer(consumer)
        return only(self.poll_many([(feed, consumer)]))

    def poll_many(self, asks: Sequence[Ask]) -> list[FeedStatus | Exception]:
        wanted = wanted_of(asks)
        return answers(asks, poll(self.database, wanted) if wanted else {})

    def read_feed(self, feed: str, shard: Shard, after: Ulid, page_size: int = 1000) -> Page:
        check_count("page_size", page_size, MAX_PAGE_SIZE, " rows")
        with self.database.connect() as connection:
            tables = load_feed(connection, feed)
            # Of a key that is not UTF-8, too: its event can be passed.
            connection.text_factory = os.fsdecode
            # The feed first: most reads find something there and take no lock.
            while not (events := self._page(tables, shard, after, page_size)):
                if not self.drain_some(tables, shard, page_size):
                    # Again, because another reader may have emptied the outbox since the feed was read.
                    events = self._page(tables, shard, after, page_size)
                    break
            return Page(shard, tuple(events))

    def drain_some(self, tables: FeedTables, shard: Shard, rows: int) -> int:
        """Order some rows of a shard's outbox; the part of the source that controls does it."""
        raise AttributeError("drain_some is implemented by the control mixin")

    def _page(self, tables: FeedTables, shard: Shard, after: Ulid, page_size: int) -> list[Event]:
        value = tables.to_sql(shard)
        keys = ", ".join(tables.keys)
        with self.database.snapshot(tables.connection):
            check_purged(tables, shard, after)
            check_beyond(tables, shard, after)
            rows = tables.execute(
                f"select {tables.ulid}, {keys} from {tables.feed} "
                f"where {tables.shard_condition} and {tables.ulid} > ? order by {tables.ulid} limit ?",
                (value, after.bytes, page_size),
            )
            return [Event(Ulid.of_bytes(row[0]), tuple(row[1:])) for row in rows]

    def count(self, feed: str, shard: Shard, ranges: Sequence[UlidRange]) -> list[int]:
        with self.database.connect() as connection, self.database.snapshot(connection):
            return count(load_feed(connection, feed), shard, ranges)

    def schema(self, feed: str) -> pa.Schema:
        with self.database.connect() as connection:
            return feed_schema(load_feed(connection, feed))

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
        from airflow_changefeed.sources.sqlite.feed import arrow

        check_stream(batch_rows, on_missing, limit)
        if range_.is_empty:
            return
        batch_rows = batch_rows if limit is None else min(batch_rows, limit)

        def ask(connection: sqlite3.Connection) -> RangeQuery:
            tables = load_feed(connection, feed)
            check_purged(tables, shard, range_.after)
            return _query_of(tables)(
                tables=tables,
                shard=shard,
                range=range_,
                on_missing=on_missing,
                only=columns,
                cuts_fractions=self.bulk_reader != "adbc",
            )

        try:
            if self.bulk_reader == "adbc":
                from airflow_changefeed.sources.sqlite.feed.adbc import stream_adbc

                # Closed before ADBC opens the file, and opened again after it (ADR 0003).
                with self.database.connect() as connection, self.database.snapshot(connection):
                    query = ask(connection)
                    rows = arrow.bounded_rows(connection, query, batch_rows)
                batches = stream_adbc(self.database.path, query, rows, self.database.lock_timeout)
                with closing(batches):
                    yield from _first(batches, limit)
                # The check and the read were two connections: a purge in between would have left rows out
                # (R12).
                with self.database.connect() as connection, self.database.snapshot(connection):
                    ask(connection)
                return
            with self.database.connect() as connection, self.database.snapshot(connection):
                query = ask(connection)
                rows = arrow.bounded_rows(connection, query, batch_rows)
                yield from _first(arrow.stream_sqlite3(connection, query, rows), limit)
        except ColumnTypeError as error:
            with self.database.connect() as connection, self.database.snapshot(connection):
                recorded = unexportable_error(load_feed(connection, feed), shard, range_)
            raise recorded or error from None

    def stale_marks(self, feed: str) -> list[StaleMark]:
        with self.database.connect() as connection:
            load_feed(connection, feed)
            return STALE.find(connection, {"feed": feed})


def _first(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """Give the first rows of a stream; to leave it before its end costs nothing here."""
    for batch in batches:
        yield batch.slice(0, limit)
        if limit is not None and (limit := limit - batch.num_rows) <= 0:
            return


def _in_range(tables: FeedTables) -> str:
    return f"{tables.shard_condition} and {tables.ulid} > ? and {tables.ulid} <= ?"


def feed_schema(tables: FeedTables) -> pa.Schema:
    """Return the columns that a feed's events are streamed in."""
    nothing = UlidRange(Ulid.MIN, Ulid.MIN)
    return _query_of(tables)(tables=tables, shard=0, range=nothing, on_missing="fail").schema


def count(tables: FeedTables, shard: Shard, ranges: Sequence[UlidRange]) -> list[int]:
    """Count the events of a shard in ranges, ascending."""
    value = tables.to_sql(shard)
    sql = (
        f"select count(*), (select purged_upto from {tables.state} where shard_id = ?) "
        f"from {tables.feed} where {_in_range(tables)}"
    )
    counts = []
    for range_ in ranges:
        row = tables.execute(sql, (value, value, range_.after.bytes, range_.upto.bytes)).fetchone()
        counts.append(int(row[0]))
        if row[1] is not None and range_.after.bytes < row[1]:
            check_purged(tables, shard, range_.after)
    return counts


def split(
    tables: FeedTables, shard: Shard, range_: UlidRange, parts: int, rows: int | None
) -> list[RangePart]:
    """Split a range into parts of about the same number of events, on one snapshot."""
    check_count("parts", parts, MAX_PARTS)
    check_purged(tables, shard, range_.after)
    if rows is None:
        (rows,) = count(tables, shard, [range_])
    if not rows:
        return []
    size = -(-rows // parts)
    # One pass in all: each step walks on from the last border.
    step = (
        f"select {tables.ulid} from {tables.feed} where {_in_range(tables)} "
        f"order by {tables.ulid} limit 1 offset ?"
    )
    value, upto, ends = tables.to_sql(shard), range_.upto.bytes, [range_.after]
    for _ in range(-(-rows // size) - 1):
        border = tables.execute(step, (value, ends[-1].bytes, upto, size - 1)).fetchone()
        if border is None:  # fewer than somebody has counted
            break
        ends.append(Ulid.of_bytes(border[0]))
    # The last part ends where the range does, even if its last event is earlier.
    ends.append(range_.upto)
    last = len(ends) - 2
    return [
        RangePart(UlidRange(start, end), size if number < last else rows - size * last)
        for number, (start, end) in enumerate(pairwise(ends))
    ]


def known_shards(tables: FeedTables) -> list[ShardStatus]:
    """Return the state of each shard that was ever written to."""
    rows = records(
        tables.connection,
        f"with {tables.known_shards} select id, max(time_ms, ?1) as time, purged_upto, has_outbox, "
        f"nullif(?1, 0) as sealed_until, (select max({tables.ulid}) from {tables.feed} "
        f"where {tables.condition_of(f'{KNOWN}.id')}) as head from {KNOWN} order by 1",
        (tables.floor_ms,),
    )
    return [shard_status(tables.from_sql(row["id"]), row) for row in rows]


def shard_bounds(tables: FeedTables, shard: Shard) -> tuple[Ulid, Ulid]:
    """
    Return ``purged_upto`` and the highest position a cursor may have.

    No ULID at or below it will be given any more.
    """
    row = tables.execute(
        f"select time_ms, ulid, purged_upto from {tables.state} where shard_id = ?", (tables.to_sql(shard),)
    ).fetchone()
    time_ms, last, purged = row or (0, bytes(16), bytes(16))
    clock = Ulid.floor_milliseconds(max(time_ms, tables.floor_ms)).previous()
    return Ulid.of_bytes(purged), max(clock, Ulid.of_bytes(last))


def load_high_water(tables: FeedTables, value: Any, now_ms: int) -> HighWater:
    """
    Return a shard's high-water time; one first used now starts at the feed's floor (ADR 0005, R7).

    :param value: the shard, as SQLite holds it.
    """
    row = tables.execute(f"select time_ms, ulid from {tables.state} where shard_id = ?", (value,)).fetchone()
    time_ms, last = row or (0, bytes(16))
    last_given = int.from_bytes(last, "big")
    tolerance_ms = tables.info.time_tolerance // timedelta(milliseconds=1)
    return HighWater(max(time_ms, tables.floor_ms), last_given, now_ms, tolerance_ms)


def store_high_water(tables: FeedTables, value: Any, clock: HighWater) -> None:
    """Write a shard's high-water time back, in the transaction that gave its ULIDs."""
    tables.execute(
        f"insert into {tables.state} (shard_id, time_ms, ulid) values (?1, ?2, ?3) "
        "on conflict (shard_id) do update set time_ms = excluded.time_ms, ulid = excluded.ulid",
        (value, clock.ms, clock.last.to_bytes(16, "big")),
    )


def count_pieces(
    tables: FeedTables, shard: Shard, pieces: Iterable[UlidRange], most: int
) -> tuple[int, Ulid | None]:
    """
    Count the events of a shard in ranges, at most so many, and return the first of them.

    :param pieces: ascending, not overlapping.
    """
    count, first = 0, None
    for piece in pieces:
        rows, lowest = tables.execute(
            f"select count(*), min(ulid) from (select {tables.ulid} as ulid from {tables.feed} "
            f"where {tables.shard_condition} and {tables.ulid} > ? and {tables.ulid} <= ? "
            "order by 1 limit ?)",
            (tables.to_sql(shard), piece.after.bytes, piece.upto.bytes, most - count),
        ).fetchone()
        count += rows
        first = first or (None if lowest is None else Ulid.of_bytes(lowest))
        if count >= most:
            break
    return count, first


def check_purged(tables: FeedTables, shard: Shard, after: Ulid) -> None:
    """Raise PurgedError if events after a position were purged (ADR 0005, R12)."""
    purged, _ = shard_bounds(tables, shard)
    check_purged_upto(tables.info.name, shard, after, purged)


def check_beyond(tables: FeedTables, shard: Shard, ulid: Ulid) -> None:
    """Raise CursorBeyondFeedError for a cursor that the shard's high-water time has not reached."""
    _, highest = shard_bounds(tables, shard)
    if ulid > highest:
        name = tables.info.name
        raise CursorBeyondFeedError(
            f"feed {name!r} shard {shard_text(shard)}: cursor {ulid} is beyond the shard's high-water time; "
            f"the highest position is {highest}. The cursor belongs to another feed, or the database was "
            "restored to an earlier state; choose a cursor that the feed has reached",
            feed=name,
            shard=shard,
            cursor=ulid,
            highest=highest,
        )


def _query_of(tables: FeedTables) -> type[RangeQuery]:
    """Return the statement that reads a range of a feed, a capture's or another's."""
    if tables.capture is not None:
        from airflow_changefeed.sources.sqlite.capture.query import CaptureQuery

        return CaptureQuery
    from airflow_changefeed.sources.sqlite.feed.arrow import RangeQuery

    return RangeQuery
