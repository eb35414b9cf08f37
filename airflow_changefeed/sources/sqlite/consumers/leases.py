# SPDX-License-Identifier: Apache-2.0
"""Leases of consumers and exports, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime

from airflow_changefeed.core.consumer import ConsumerInfo
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard, check_shard, shard_text
from airflow_changefeed.core.times import format_time, from_milliseconds
from airflow_changefeed.exceptions import LeaseHeldError
from airflow_changefeed.sources.base_leases import Grant, LeaseInfo, Waiter, check_lease
from airflow_changefeed.sources.base_versions import stale_lease
from airflow_changefeed.sources.sqlite.consumers.control import SqliteConsumers, consumer_infos, load_consumer
from airflow_changefeed.sources.sqlite.consumers.cursor_rows import cursor_rows, known_row, rows_by_shard
from airflow_changefeed.sources.sqlite.feed.names import load_feed
from airflow_changefeed.sources.sqlite.feed.reader import shard_bounds

_WHERE = "where feed = ? and consumer = ? and shard = ?"


class SqliteLeases(SqliteConsumers):
    """The part of the source that grants leases."""

    def acquire_leases(
        self,
        consumer: str,
        feed: str,
        shards: Sequence[Shard],
        *,
        holder: str,
        seconds: float,
        tokens: Mapping[Shard, int] | None = None,
        at_most: int | None = None,
        all_or_none: bool = False,
    ) -> Grant:
        check_lease(seconds, at_most, all_or_none=all_or_none)
        with self.database.connect() as connection:
            if not all_or_none:
                load_consumer(connection, consumer, feed)
                if not tokens and not self._is_worth_it(connection, consumer, feed, shards, holder, seconds):
                    return self._grant(connection, consumer, feed, shards, holder, ())
            with self.database.write(connection):
                now_ms = self.database.now_ms()
                if all_or_none:
                    load_feed(connection, feed)
                    self._check_free(connection, consumer, feed, shards, holder)
                else:
                    info = load_consumer(connection, consumer, feed)
                    self._begin_shards(connection, info, shards, by=holder)
                expires_ms = now_ms + int(seconds * 1000)
                kept = [
                    shard
                    for shard, token in (tokens or {}).items()
                    if connection.execute(
                        f'update "changefeed.consumer" set lease_expires_ms = ? {_WHERE} '
                        "and fencing_token = ? and lease_holder = ?",
                        (expires_ms, feed, consumer, shard_text(shard), token, holder),
                    ).rowcount
                ]
                wanted = [shard for shard in shards if shard not in (tokens or {})]
                free = self._free(rows_by_shard(connection, consumer, feed), wanted, holder)[:at_most]
                if free:
                    token = _draw_token(connection)
                    # Not shown for exports.
                    has_settings = any(
                        info.spec.consumer == consumer for info in consumer_infos(connection, feed)
                    )
                    since = f"lease_since_ms = {now_ms}, " if has_settings else ""
                    connection.executemany(
                        f'update "changefeed.consumer" set {since}fencing_token = ?, lease_holder = ?, '
                        f"lease_expires_ms = ? {_WHERE}",
                        [(token, holder, expires_ms, feed, consumer, shard_text(shard)) for shard in free],
                    )
                if shards and not all_or_none:
                    rows = cursor_rows(connection, feed, consumer)
                    has_any = any(row.lease_holder == holder for row in rows)
                    self._note_waiter(connection, consumer, feed, holder, 0 if has_any else seconds)
                return self._grant(connection, consumer, feed, shards, holder, [*kept, *free])

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
        rows = rows_by_shard(connection, consumer, feed)
        if not rows.keys() >= set(shards) or self._free(rows, shards, holder):
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

    def _check_free(
        self,
        connection: sqlite3.Connection,
        consumer: str,
        feed: str,
        shards: Sequence[Shard],
        holder: str,
    ) -> None:
        """Raise LeaseHeldError if another holder has an unexpired lease on a shard."""
        now = self.database.now()
        rows = rows_by_shard(connection, consumer, feed)
        for shard in shards:
            row = known_row(rows, consumer, feed, shard)
            if (expires := _held_until(row, holder, now)) is not None:
                raise LeaseHeldError(
                    f"consumer {consumer!r}, feed {feed!r}, shard {shard_text(shard)} is leased to "
                    f"{row.lease_holder!r} until {format_time(expires)}; retry then",
                    row=row,
                    holder=row.lease_holder,
                    expires=expires,
                )

    def _free(self, rows: Mapping[Shard, CursorRow], shards: Sequence[Shard], holder: str) -> list[Shard]:
        now = self.database.now()
        free = [shard for shard in shards if shard in rows and _held_until(rows[shard], holder, now) is None]
        return sorted(free, key=lambda shard: rows[shard].lease_holder != holder)

    def _grant(
        self,
        connection: sqlite3.Connection,
        consumer: str,
        feed: str,
        shards: Sequence[Shard],
        holder: str,
        held: Sequence[Shard],
    ) -> Grant:
        """Return the leases held by a call, and who else holds some or waits."""
        now = self.database.now()
        rows = rows_by_shard(connection, consumer, feed)
        others = [
            expires
            for shard in shards
            if shard in rows and (expires := _held_until(rows[shard], holder, now)) is not None
        ]
        waiting, retries = connection.execute(
            'select (select count(*) from "changefeed.lease_waiter" '
            "where feed = ?1 and consumer = ?2 and waiter <> ?3 and until_ms > ?4), "
            'exists (select 1 from "changefeed.dead_letter" '
            "where feed = ?1 and consumer = ?2 and state = 'retry')",
            (feed, consumer, holder, self.database.now_ms()),
        ).fetchone()
        return Grant(
            {shard: rows[shard] for shard in held}, now, min(others, default=None), waiting, bool(retries)
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

    def release_leases(self, consumer: str, feed: str, tokens: Mapping[Shard, int], *, holder: str) -> None:
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            connection.executemany(
                'update "changefeed.consumer" set lease_holder = null, lease_expires_ms = null '
                f"{_WHERE} and fencing_token = ? and lease_holder = ?",
                [(feed, consumer, shard_text(shard), token, holder) for shard, token in tokens.items()],
            )
            self._note_waiter(connection, consumer, feed, holder, 0)

    def revoke_lease(self, consumer: str, feed: str, shard: Shard, *, fencing_token: int) -> None:
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            known = rows_by_shard(connection, consumer, feed)
            row = known_row(known, consumer, feed, shard)
            if row.fencing_token != fencing_token or row.lease_holder is None:
                raise stale_lease(row, fencing_token)
            connection.execute(
                f'update "changefeed.consumer" set lease_holder = null, lease_expires_ms = null {_WHERE}',
                (feed, consumer, shard_text(shard)),
            )

    def leases(self, feed: str | None = None) -> list[LeaseInfo]:
        with self.database.connect() as connection, self.database.snapshot(connection):
            if feed is not None:
                load_feed(connection, feed)
            return _leases(connection, feed, self.database.now_ms())


def _draw_token(connection: sqlite3.Connection) -> int:
    """Draw a fencing token: higher than every one drawn in this database before."""
    (token,) = connection.execute('insert into "changefeed.lease" default values returning token').fetchone()
    connection.execute('delete from "changefeed.lease"')
    return int(token)


def _held_until(row: CursorRow, holder: str, now: datetime) -> datetime | None:
    """Return when another user's lease on a shard expires; None if it is free or the holder's own."""
    if row.lease_holder in (None, holder) or row.lease_expires is None or row.lease_expires <= now:
        return None
    return row.lease_expires


def _leases(connection: sqlite3.Connection, feed: str | None, now_ms: int) -> list[LeaseInfo]:
    waiters: dict[tuple[str, str], list[Waiter]] = {}
    for of, consumer, name, since_ms in connection.execute(
        'select feed, consumer, waiter, since_ms from "changefeed.lease_waiter" where until_ms > ? '
        "order by since_ms, waiter",
        (now_ms,),
    ):
        waiters.setdefault((of, consumer), []).append(Waiter(name, from_milliseconds(since_ms)))
    since: dict[tuple[str, str, str], int | None] = {
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
