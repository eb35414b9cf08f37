# SPDX-License-Identifier: Apache-2.0
"""
Drain, seal and purge, in SQLite.

``begin immediate`` admits one writer at a time, so an outbox row is committed before the next one gets its
``order_sequence``: the order of the outbox is the order of commits, and a drain sees no half of a
transaction.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from airflow_changefeed.core.cursor import Began
from airflow_changefeed.core.feed import Seal, Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange, uncovered
from airflow_changefeed.core.values import format_time, from_milliseconds, to_milliseconds
from airflow_changefeed.exceptions import FutureTimeError, NotYetError
from airflow_changefeed.sources.base_control import Purged
from airflow_changefeed.sources.shared import MAX_BATCH_ROWS, check_count
from airflow_changefeed.sources.sqlite.capture.drain import move_captured, purge_captured
from airflow_changefeed.sources.sqlite.capture.gaps import check_names, find_gaps, gap_error
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.cursors import (
    ACKNOWLEDGED,
    CURSORS,
    forget_acknowledged,
)
from airflow_changefeed.sources.sqlite.feed.names import KNOWN, FeedTables, load_again, load_feed
from airflow_changefeed.sources.sqlite.feed.reader import (
    count_pieces,
    load_high_water,
    shard_bounds,
    store_high_water,
)

#: Rows ordered in one transaction: long enough to be quick, short enough that writers wait for milliseconds.
DRAIN_ROWS = 10_000
#: Shards likewise: each costs as much as some ten rows.
DRAIN_SHARDS = 500
_SOON = timedelta(minutes=1)
#: SQL of a row's time hint in milliseconds; the outbox checks that text is a time.
HINT_MS = (
    "case typeof(time_hint) when 'integer' then time_hint "
    "else coalesce(cast(round((julianday(time_hint) - 2440587.5) * 86400000) as integer), 0) end"
)


class SqliteControl:
    """The part of the source that drains, seals and purges."""

    database: SqliteDatabase

    def drain(self, feed: str) -> dict[Shard, int]:
        with self.database.connect() as connection:
            tables = load_feed(connection, feed)
            return self._drain(tables)

    def _drain(self, tables: FeedTables) -> dict[Shard, int]:
        if tables.capture is not None:
            return self._drain_captured(tables)
        drained: Counter[Shard] = Counter()
        waiting = deque(tables.from_sql(value) for value in waiting_shards(tables))
        while waiting:
            drained.update(self.drain_page(tables.connection, tables.info.name, waiting))
        return dict(drained)

    def drain_page(self, connection: sqlite3.Connection, feed: str, waiting: deque[Shard]) -> Counter[Shard]:
        """
        Order rows of the first shards in one transaction: a commit for each would cost more than its rows.

        :param waiting: shards to drain, at least one; those whose outbox was empty then are taken from it.
            With what came to them since, busy writers could keep a drain busy forever.
        :return: rows of each shard.
        """
        moved: Counter[Shard] = Counter()
        room = DRAIN_ROWS
        with self.database.write(connection):
            tables = load_feed(connection, feed)
            while waiting and room and len(moved) < DRAIN_SHARDS:
                shard = waiting[0]
                if rows := self._move(tables, shard, room):
                    moved[shard] = rows
                    room -= rows
                if room:
                    waiting.popleft()
        return moved

    def _drain_captured(self, tables: FeedTables) -> dict[Shard, int]:
        """Order the events of a capture, all shards side by side."""
        drained: Counter[Any] = Counter()
        # Whether any row waits, not in which shard: without an index, that would scan all rows for each page.
        while tables.execute(f"select exists (select 1 from {tables.outbox})").fetchone()[0]:
            with self.database.write(tables.connection):
                tables = load_again(tables)
                moved = move_captured(tables, self.database.now_ms(), DRAIN_ROWS)
            drained.update(moved)
            if moved.total() < DRAIN_ROWS:
                break
        return {tables.from_sql(value): rows for value, rows in sorted(drained.items())}

    def drain_some(self, tables: FeedTables, shard: Shard, rows: int) -> int:
        """
        Order rows of a shard's outbox in a transaction of their own.

        :param rows: at least; fewer only when the outbox has no more.
        :return: how many; 0 without taking the lock when none wait.
        """
        one = f"select 1 from {tables.outbox} where shard_id = ? limit 1"
        if tables.is_serialized or tables.execute(one, (tables.to_sql(shard),)).fetchone() is None:
            return 0
        with self.database.write(tables.connection):
            # Again, as the feed may have been sealed, or emptied by another reader, before this one had the
            # lock.
            return self._move(load_again(tables), shard, max(rows, DRAIN_ROWS))

    def _move(self, tables: FeedTables, shard: Shard, limit: int) -> int:
        """Move rows from outbox to feed, in order, under the write lock."""
        now_ms = self.database.now_ms()
        if tables.capture is not None:
            return move_captured(tables, now_ms, limit).total()
        value = tables.to_sql(shard)
        keys = ", ".join(tables.keys)
        rows = tables.execute(
            f"select order_sequence, {HINT_MS} from {tables.outbox} "
            "where shard_id = ? order by order_sequence limit ?",
            (value, limit),
        ).fetchall()
        if not rows:
            return 0
        clock = load_high_water(tables, value, now_ms)
        tables.executemany(
            f"insert into {tables.feed} (shard_id, ulid, {keys}) "
            f"select ?, ?, {keys} from {tables.outbox} where order_sequence = ?",
            [(value, clock.give(hint).to_bytes(16, "big"), number) for number, hint in rows],
        )
        tables.execute(
            f"delete from {tables.outbox} where shard_id = ? and order_sequence <= ?", (value, rows[-1][0])
        )
        store_high_water(tables, value, clock)
        return len(rows)

    def seal(self, feed: str, until: datetime) -> dict[Shard, Seal]:
        with self.database.connect() as connection:
            return self.seal_on(load_feed(connection, feed), until)

    def seal_on(self, tables: FeedTables, until: datetime) -> dict[Shard, Seal]:
        """
        Seal a feed.

        :param tables: as found a moment ago.
        """
        feed, until_ms = tables.info.name, to_milliseconds(until)
        self._check_past(feed, until, until_ms)
        if tables.floor_ms >= until_ms or _is_long(tables):
            # Most of the outbox before the lock that all writers wait for.
            self._drain(tables)
            tables = load_feed(tables.connection, feed)
        if tables.floor_ms < until_ms:
            self._seal(tables.connection, feed, until_ms)
        return _seals(tables, until_ms)

    def _seal(self, connection: sqlite3.Connection, feed: str, until_ms: int) -> None:
        with self.database.write(connection):
            tables = load_feed(connection, feed)
            if tables.capture is not None:
                check_names(tables.capture)
            open_gaps = find_gaps(tables, self.database.now_ms())
            if not open_gaps:
                for value in waiting_shards(tables):
                    while self._move(tables, tables.from_sql(value), DRAIN_ROWS) >= DRAIN_ROWS:
                        pass
                    if tables.capture is not None:
                        break  # all shards were ordered
                self.raise_high_water(tables, until_ms)
        if open_gaps:
            # After the transaction, which keeps what was found.
            raise gap_error(feed, open_gaps)

    def raise_high_water(self, tables: FeedTables, until_ms: int) -> None:
        """Raise the high-water time of each shard, and the floor of future shards, under the write lock."""
        tables.execute(f"update {tables.state} set time_ms = max(time_ms, ?)", (until_ms,))
        tables.execute(
            'update "changefeed.registry" set floor_ms = max(floor_ms, ?) where feed = ?',
            (until_ms, tables.info.name),
        )

    def _check_past(self, feed: str, until: datetime, until_ms: int) -> None:
        now_ms = self.database.now_ms()
        if until_ms <= now_ms:
            return
        now = from_milliseconds(now_ms)
        message = (
            f"feed {feed!r} cannot be sealed until {format_time(until)}: the database's clock is at "
            f"{format_time(now)}. Retry when that time has come"
        )
        error = NotYetError if until_ms - now_ms < _SOON // timedelta(milliseconds=1) else FutureTimeError
        raise error(message, feed=feed, until=until, now=now)

    def purge(
        self, feed: str, before: datetime, *, batch_rows: int = 10_000, dry_run: bool = False
    ) -> list[Purged]:
        check_count("batch_rows", batch_rows, MAX_BATCH_ROWS)
        wanted = Ulid.floor(before).previous()
        with self.database.connect() as connection:
            tables = load_feed(connection, feed)
            shards = [row[0] for row in connection.execute(f"select shard_id from {tables.state} order by 1")]
            return [self._purge(tables, value, wanted, batch_rows, dry_run) for value in shards]

    def _purge(self, tables: FeedTables, value: Any, wanted: Ulid, batch: int, dry_run: bool) -> Purged:
        shard = tables.from_sql(value)
        with self.database.snapshot(tables.connection) if dry_run else self.database.write(tables.connection):
            now_ms = self.database.now_ms()
            found = _purge_bound(load_again(tables), shard, wanted, now_ms)
            bound = found.upto
            if dry_run:
                if tables.is_serialized:
                    return found
                sql = f"select count(*) from {tables.feed} where shard_id = ? and ulid <= ?"
                (rows,) = tables.execute(sql, (value, bound.bytes)).fetchone()
                return replace(found, rows=rows)
            # Stored before rows are deleted, so that no reader mistakes a partly deleted range for a complete
            # one (R12).
            tables.execute(
                f"update {tables.state} set purged_upto = ? where shard_id = ? and purged_upto < ?",
                (bound.bytes, value, bound.bytes),
            )
            forget_acknowledged(tables.connection, tables.info.name, shard, bound)
        return replace(found, rows=self._delete_upto(tables, value, bound, batch))

    def _delete_upto(self, tables: FeedTables, value: Any, bound: Ulid, batch: int) -> int:
        if tables.is_serialized:
            return 0
        removed = 0
        while True:
            with self.database.write(tables.connection):
                if tables.capture is not None:
                    purge_captured(tables, value, bound.bytes, batch)
                rows = tables.execute(
                    f"delete from {tables.feed} where shard_id = ?1 and ulid <= coalesce(("
                    f"select ulid from {tables.feed} where shard_id = ?1 and ulid <= ?2 order by ulid "
                    "limit 1 offset ?3), ?2)",
                    (value, bound.bytes, batch - 1),
                ).rowcount
            removed += rows
            if rows < batch:
                return removed

    def next_attempt(self, feed: str, *, above: int = 0) -> int:
        with self.database.connect() as connection, self.database.write(connection):
            return draw_attempt(connection, feed, above)


def draw_attempt(connection: sqlite3.Connection, feed: str, above: int) -> int:
    """
    Draw an attempt token, in a write transaction.

    :raises FeedNotFoundError: the feed does not exist.
    """
    drawn = connection.execute(
        'update "changefeed.registry" set attempt = max(attempt, ?) + 1 where feed = ? returning attempt',
        (above, feed),
    ).fetchone()
    if drawn is None:
        load_feed(connection, feed)
    return int(drawn[0])


def waiting_shards(tables: FeedTables) -> list[Any]:
    """Return the shards that have rows in the outbox, as SQLite holds them."""
    rows: Iterable[tuple[Any]] = tables.execute(tables.waiting_shards)
    return [value for (value,) in rows]


def _is_long(tables: FeedTables) -> bool:
    """Whether more rows wait in the outbox than may be ordered while all writers wait."""
    if tables.is_serialized:
        return False
    sql = f"select 1 from {tables.outbox} limit 1 offset {DRAIN_SHARDS}"
    return tables.execute(sql).fetchone() is not None


def _seals(tables: FeedTables, until_ms: int) -> dict[Shard, Seal]:
    until = from_milliseconds(max(until_ms, tables.floor_ms))
    rows = tables.execute(
        f"select shard_id, (select max({tables.ulid}) from {tables.feed} "
        f"where {tables.condition_of(f'{KNOWN}.shard_id')} and {tables.ulid} < ?) "
        f"from {tables.state} as {KNOWN} order by 1",
        (Ulid.floor(until).bytes,),
    ).fetchall()
    heads = [(tables.from_sql(value), None if head is None else Ulid.of_bytes(head)) for value, head in rows]
    return {shard: Seal(shard, until, head) for shard, head in heads}


def _purge_bound(tables: FeedTables, shard: Shard, wanted: Ulid, now_ms: int) -> Purged:
    """
    Return up to where a purge may go: what was asked, what is sealed, and what every consumer acknowledged
    and no snapshot needs, or is older than may be held for them. Where nobody has acknowledged an event
    before the implied beginning of an export, the purge stops before it.
    """
    purged, _ = shard_bounds(tables, shard)
    # A consumer without a row for this shard has not yet seen it, and needs all of it; one of events all from
    # where its later shards begin.
    settings = 'from "changefeed.consumer_settings" where feed = ?1'
    consumers = (
        'select distinct consumer, zeroblob(16) as begin from "changefeed.consumer" where feed = ?1 '
        f"and consumer not in (select consumer {settings}) union all select consumer, begin_ulid {settings}"
    )
    acks = tables.execute(
        "select coalesce(min(ack), x'ffffffffffffffffffffffffffffffff') from (select coalesce(("
        'select ack from "changefeed.consumer" c where c.feed = ?1 and c.consumer = k.consumer '
        f"and c.shard = ?2), k.begin) as ack from ({consumers}) k)",
        (tables.info.name, str(shard)),
    ).fetchone()
    begins = tables.execute(
        'select begin_ms from "changefeed.snapshot" where capture = ? and expires_ms > ?',
        (tables.info.name, now_ms),
    )
    held = [Ulid.of_bytes(acks[0]), *(Ulid.floor_milliseconds(begin).previous() for (begin,) in begins)]
    bound = min(wanted, Ulid.floor_milliseconds(tables.floor_ms).previous())
    kept = min(bound, *held)
    released = min(bound, tables.info.held_since(from_milliseconds(now_ms)))
    if released > kept:
        # To the last event that goes, so that a consumer that has read everything does not count as lost.
        kept = max(kept, _last_event(tables, shard, released))
    kept = max(purged, kept)
    of_shard = {"feed": tables.info.name, "shard": shard}
    rows = CURSORS.find(tables.connection, of_shard)
    starts = {row.consumer: row.frontier.start for row in rows if row.began is Began.IMPLIED}
    known = [
        *ACKNOWLEDGED.find(tables.connection, of_shard),
        *(one for row in rows for one in row.acknowledged),
    ]
    after, before = max(purged, released), min(kept, max(starts.values(), default=Ulid.MIN))
    pieces = uncovered(UlidRange(after, before), known) if after < before else []
    _, first = count_pieces(tables, shard, pieces, 1)
    if first is None:
        return Purged(shard, 0, kept)
    holders = sorted(consumer for consumer, start in starts.items() if start >= first)
    # To the last event that goes: the window of the first one that stays may begin before it.
    last = _last_event(tables, shard, first.previous())
    return Purged(shard, 0, max(purged, last), first, tuple(holders))


def _last_event(tables: FeedTables, shard: Shard, upto: Ulid) -> Ulid:
    """Return the last event of a shard up to a place; ``Ulid.MIN`` if there is none."""
    (last,) = tables.execute(
        f"select max({tables.ulid}) from {tables.feed} where {tables.shard_condition} and {tables.ulid} <= ?",
        (tables.to_sql(shard), upto.bytes),
    ).fetchone()
    return Ulid.MIN if last is None else Ulid.of_bytes(last)
