# SPDX-License-Identifier: Apache-2.0
"""Leases of consumers, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime

from airflow_changefeed.core.consumer import ConsumerInfo, Grant, LeaseInfo, Renewal, Waiter
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard, check_shard, shard_text
from airflow_changefeed.core.times import from_milliseconds
from airflow_changefeed.sources.sqlite.consumers.control import SqliteConsumers, load_consumer
from airflow_changefeed.sources.sqlite.consumers.cursor_rows import (
    check_lease_seconds,
    cursor_rows,
    draw_token,
)
from airflow_changefeed.sources.sqlite.feed.names import load_feed, present
from airflow_changefeed.sources.sqlite.feed.reader import shard_bounds

_WHERE = "where feed = ? and consumer = ? and shard = ?"


class SqliteLeases(SqliteConsumers):
    """The part of the source that grants leases."""

    def request_leases(
        self,
        consumer: str,
        feed: str,
        shards: Sequence[Shard],
        *,
        holder: str,
        seconds: float,
        at_most: int | None = None,
    ) -> Grant:
        """See :class:`~airflow_changefeed.sources.base_consumers.ConsumerStore`, also for what follows."""
        check_lease_seconds(seconds)
        with self.database.connect() as connection:
            load_consumer(connection, consumer, feed)
            if not self._is_worth_it(connection, consumer, feed, shards, holder, seconds):
                return self._granted(connection, consumer, feed, shards, holder)
            with self.database.write(connection):
                info = load_consumer(connection, consumer, feed)
                self._begin_shards(connection, info, shards, by=holder)
                free = self._free(connection, consumer, feed, shards, holder)[:at_most]
                self._grant(connection, consumer, feed, free, holder, seconds)
                rows = {row.shard: row for row in cursor_rows(connection, feed, consumer)}
                has_any = any(row.lease_holder == holder for row in rows.values())
                self._note_waiter(connection, consumer, feed, holder, 0 if has_any else seconds)
            taken = {shard: rows[shard] for shard in free}
            return self._granted(connection, consumer, feed, shards, holder, taken)

    def _is_worth_it(
        self,
        connection: sqlite3.Connection,
        consumer: str,
        feed: str,
        shards: Sequence[Shard],
        holder: str,
        seconds: float,
    ) -> bool:
        """Whether the write lock is worth taking: waiting consumers ask often."""
        begun = {row.shard for row in cursor_rows(connection, feed, consumer)}
        if not begun.issuperset(shards) or self._free(connection, consumer, feed, shards, holder):
            return True
        half = self.database.now_ms() + int(seconds * 500)
        return not connection.execute(
            'select 1 from "changefeed.lease_waiter" '
            "where feed = ? and consumer = ? and waiter = ? and until_ms > ?",
            (feed, consumer, holder, half),
        ).fetchone()

    def _begin_shards(
        self, connection: sqlite3.Connection, info: ConsumerInfo, shards: Sequence[Shard], *, by: str
    ) -> None:
        consumer, feed = info.spec.consumer, info.spec.feed
        tables = load_feed(connection, feed)
        begun = {row.shard for row in cursor_rows(connection, feed, consumer)}
        for shard in shards:
            check_shard(shard, tables.info.shard_key_type)
            if shard not in begun:
                # A shard refuses a cursor beyond its high-water time; all its later events are after its head
                # anyway.
                _, highest = shard_bounds(connection, tables, shard)
                self.insert_cursor(connection, consumer, feed, shard, min(info.begin, highest), by)

    def _free(
        self,
        connection: sqlite3.Connection,
        consumer: str,
        feed: str,
        shards: Sequence[Shard],
        holder: str,
    ) -> list[Shard]:
        now = self.database.now()
        rows = {row.shard: row for row in cursor_rows(connection, feed, consumer)}
        return [shard for shard in shards if shard in rows and not _is_held(rows[shard], holder, now)]

    def _granted(
        self,
        connection: sqlite3.Connection,
        consumer: str,
        feed: str,
        shards: Sequence[Shard],
        holder: str,
        taken: Mapping[Shard, CursorRow] | None = None,
    ) -> Grant:
        """Return the leases taken, and when the others' leases expire."""
        now = self.database.now()
        others = [
            row.lease_expires
            for row in cursor_rows(connection, feed, consumer)
            if row.shard in shards and row.lease_expires and _is_held(row, holder, now)
        ]
        return Grant.of(taken or {}, others, now)

    def _grant(
        self,
        connection: sqlite3.Connection,
        consumer: str,
        feed: str,
        shards: Sequence[Shard],
        holder: str,
        seconds: float,
    ) -> None:
        now_ms = self.database.now_ms()
        token = draw_token(connection)
        connection.executemany(
            'update "changefeed.consumer" set fencing_token = ?, lease_holder = ?, lease_since_ms = ?, '
            f"lease_expires_ms = ? {_WHERE}",
            [
                (token, holder, now_ms, now_ms + int(seconds * 1000), feed, consumer, shard_text(shard))
                for shard in shards
            ],
        )

    def _note_waiter(
        self, connection: sqlite3.Connection, consumer: str, feed: str, holder: str, seconds: float
    ) -> None:
        """Register a waiting consumer, or with 0 seconds unregister it; drop expired ones."""
        now_ms = self.database.now_ms()
        if seconds:
            connection.execute(
                'insert into "changefeed.lease_waiter" (consumer, feed, waiter, since_ms, until_ms) '
                "values (?, ?, ?, ?, ?) on conflict do update set until_ms = excluded.until_ms",
                (consumer, feed, holder, now_ms, now_ms + int(seconds * 1000)),
            )
        connection.execute(
            'delete from "changefeed.lease_waiter" where feed = ? and consumer = ? '
            "and (until_ms <= ? or (waiter = ? and ?))",
            (feed, consumer, now_ms, holder, not seconds),
        )

    def renew_leases(
        self, consumer: str, feed: str, tokens: Mapping[Shard, int], *, holder: str, seconds: float
    ) -> Renewal:
        """See the protocol."""
        check_lease_seconds(seconds)
        with self.database.connect() as connection, self.database.write(connection):
            load_consumer(connection, consumer, feed)
            now_ms = self.database.now_ms()
            held = frozenset(
                shard
                for shard, token in tokens.items()
                if connection.execute(
                    f'update "changefeed.consumer" set lease_expires_ms = ? {_WHERE} '
                    "and fencing_token = ? and lease_holder = ?",
                    (now_ms + int(seconds * 1000), feed, consumer, shard_text(shard), token, holder),
                ).rowcount
            )
            (waiting,) = connection.execute(
                'select count(*) from "changefeed.lease_waiter" '
                "where feed = ? and consumer = ? and waiter <> ? and until_ms > ?",
                (feed, consumer, holder, now_ms),
            ).fetchone()
            (retries,) = connection.execute(
                'select exists (select 1 from "changefeed.dead_letter" '
                "where feed = ? and consumer = ? and state = 'retry')",
                (feed, consumer),
            ).fetchone()
            return Renewal(held, waiting, bool(retries))

    def leave(self, consumer: str, feed: str, tokens: Mapping[Shard, int], *, holder: str) -> None:
        """See the protocol."""
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            connection.executemany(
                'update "changefeed.consumer" set lease_holder = null, lease_expires_ms = null, '
                f"lease_since_ms = null {_WHERE} and fencing_token = ? and lease_holder = ?",
                [(feed, consumer, shard_text(shard), token, holder) for shard, token in tokens.items()],
            )
            self._note_waiter(connection, consumer, feed, holder, 0)

    def leases(self, feed: str | None = None) -> list[LeaseInfo]:
        """See the protocol."""
        with self.database.connect() as connection, self.database.snapshot(connection):
            if feed is not None:
                load_feed(connection, feed)
            return _leases(connection, feed, self.database.now_ms())


def _is_held(row: CursorRow, holder: str, now: datetime) -> bool:
    """Whether another user holds an unexpired lease on a shard."""
    return (
        row.lease_holder not in (None, holder) and row.lease_expires is not None and row.lease_expires > now
    )


def _leases(connection: sqlite3.Connection, feed: str | None, now_ms: int) -> list[LeaseInfo]:
    waiters: dict[tuple[str, str], list[Waiter]] = {}
    since: dict[tuple[str, str, str], int | None] = {}
    if present(connection, ("lease_waiter",)):
        for of, consumer, name, since_ms in connection.execute(
            'select feed, consumer, waiter, since_ms from "changefeed.lease_waiter" where until_ms > ? '
            "order by since_ms, waiter",
            (now_ms,),
        ):
            waiters.setdefault((of, consumer), []).append(Waiter(name, from_milliseconds(since_ms)))
        since = {
            tuple(row[:3]): row[3]
            for row in connection.execute(
                'select feed, consumer, shard, lease_since_ms from "changefeed.consumer"'
            )
        }
    feeds = (
        [feed]
        if feed is not None
        else [
            name
            for (name,) in connection.execute('select distinct feed from "changefeed.consumer" order by 1')
        ]
    )
    return [
        _lease(row, since.get((row.feed, row.consumer, shard_text(row.shard))), waiters)
        for name in feeds
        for row in cursor_rows(connection, name, None)
    ]


def _lease(
    row: CursorRow, since_ms: int | None, waiters: Mapping[tuple[str, str], list[Waiter]]
) -> LeaseInfo:
    is_held = row.lease_holder is not None
    return LeaseInfo(
        consumer=row.consumer,
        feed=row.feed,
        shard=row.shard,
        token=row.fencing_token,
        holder=row.lease_holder,
        since=from_milliseconds(since_ms) if is_held and since_ms is not None else None,
        expires=row.lease_expires,
        waiters=tuple(waiters.get((row.feed, row.consumer), ())),
    )
