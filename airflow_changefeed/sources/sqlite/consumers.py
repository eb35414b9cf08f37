# SPDX-License-Identifier: Apache-2.0
"""Consumers and their leases, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from airflow_changefeed.core.consumer import ConsumerInfo, ConsumerSpec, DeadLetterState
from airflow_changefeed.core.cursor import Began, CursorRow
from airflow_changefeed.core.feed import Shard, check_shard, parse_shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import ConsumerSetupError, LeaseHeldError
from airflow_changefeed.sources.base_consumers import Grant, LeaseInfo, Waiter, check_lease
from airflow_changefeed.sources.base_control import check_version, consumer_text, stale, stale_lease
from airflow_changefeed.sources.shared import Row, as_time, known_consumer, lease_info
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.consumer_session import LETTERS, SqliteConsumerSession
from airflow_changefeed.sources.sqlite.cursors import (
    CURSORS,
    SETTINGS,
    SqliteCursors,
    end_consumers,
    first_version,
    key_of,
    known_row,
    remember_acknowledged,
    rows_by_shard,
)
from airflow_changefeed.sources.sqlite.feed.names import CONSUMER_TABLES, load_feed
from airflow_changefeed.sources.sqlite.feed.reader import shard_bounds
from airflow_changefeed.sources.sqlite.records import Records


class SqliteConsumers(SqliteCursors):
    """The part of the source that keeps consumers."""

    database: SqliteDatabase

    def create_consumer(
        self, spec: ConsumerSpec, *, begin: Ulid, starts: Mapping[Shard, Ulid], by: str
    ) -> ConsumerInfo:
        consumer, feed = spec.consumer, spec.feed
        key = {"feed": feed, "consumer": consumer}
        with self.database.connect() as connection, self.database.write(connection):
            tables = load_feed(connection, feed)
            for info in SETTINGS.find(connection, key):
                return _same(info, spec)
            if CURSORS.find(connection, key, limit=1):
                raise ConsumerSetupError(
                    f"consumer {consumer!r} of feed {feed!r} is an export; choose another name",
                    consumer=consumer,
                    feed=feed,
                )
            self.begin_on(tables, consumer, starts, by=by, began=Began.CHOSEN)
            values = {
                "settings": spec.to_json(),
                "begin_ulid": begin,
                "created_at": self.database.now(),
                "created_by": by,
                "resource_version": first_version(connection, feed, consumer),
            }
            return SETTINGS.add(connection, {**key, **values})

    def change_consumer(self, spec: ConsumerSpec, *, resource_version: int, by: str) -> ConsumerInfo:
        consumer, feed = spec.consumer, spec.feed
        with self.database.connect() as connection, self.database.write(connection):
            info = load_consumer(connection, consumer, feed)
            changed = SETTINGS.change(
                connection,
                {"feed": feed, "consumer": consumer},
                {"settings": spec.to_json()},
                expected_version=resource_version,
                keeps_version=spec == info.spec,
            )
            if not changed:
                what, present = f"consumer {consumer!r} of feed {feed!r}", consumer_text(info.spec, ())
                raise stale(what, resource_version, info.resource_version, present)
            return changed[0]

    def drop_consumer(self, consumer: str, feed: str, *, resource_version: int | None = None) -> None:
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            key = {"feed": feed, "consumer": consumer}
            infos, rows = SETTINGS.find(connection, key), CURSORS.find(connection, key)
            version = sum(one.resource_version for one in infos or rows)
            present = consumer_text(infos[0].spec if infos else None, rows)
            check_version(f"consumer {consumer!r} of feed {feed!r}", resource_version, version, present)
            end_consumers(connection, feed, consumer)
            remember_acknowledged(connection, feed, rows)
            for name in CONSUMER_TABLES:
                connection.execute(
                    f'delete from "changefeed.{name}" where feed = ? and consumer = ?', (feed, consumer)
                )

    def consumers(self, feed: str | None = None) -> list[ConsumerInfo]:
        with self.database.connect() as connection:
            if feed is not None:
                load_feed(connection, feed)
            return SETTINGS.find(connection, {"feed": feed})

    def consumer(self, consumer: str, feed: str) -> ConsumerInfo:
        with self.database.connect() as connection:
            return load_consumer(connection, consumer, feed)

    def open_session(self, consumer: str, feed: str) -> SqliteConsumerSession:
        with self.database.connect() as connection:
            load_consumer(connection, consumer, feed)
        return SqliteConsumerSession(self.database, consumer, feed)


def _same(info: ConsumerInfo, spec: ConsumerSpec) -> ConsumerInfo:
    if info.spec != spec:
        raise ConsumerSetupError(
            f"consumer {spec.consumer!r} of feed {spec.feed!r} already exists with other settings: "
            f"{info.spec.to_json()}, not {spec.to_json()}. Drop the consumer first, or choose another "
            "name",
            consumer=spec.consumer,
            feed=spec.feed,
            present=info.spec,
        )
    return info


def load_consumer(connection: sqlite3.Connection, consumer: str, feed: str) -> ConsumerInfo:
    """
    Return a consumer.

    :raises FeedNotFoundError: no such feed.
    :raises ConsumerNotFoundError: the consumer does not exist.
    """
    load_feed(connection, feed)
    return known_consumer(consumer, feed, SETTINGS.find(connection, {"feed": feed}))


_WAITERS: Records[Row] = Records("lease_waiter", dict, "since_ms, waiter")
#: The rows of cursors by their shards alone: a lease changes many, and reads no frontier.
_SHARDS: Records[Shard] = Records(CURSORS.name, lambda row: parse_shard(row["shard"]))
_RELEASED: Mapping[str, object] = {"lease_holder": None, "lease_expires_ms": None}


@dataclass(frozen=True)
class _Request:
    """
    A holder's request for leases on shards of a consumer, on its connection.

    :param seconds: until they expire.
    """

    database: SqliteDatabase
    connection: sqlite3.Connection
    consumer: str
    feed: str
    holder: str
    seconds: float = 0
    shards: Sequence[Shard] = ()

    @property
    def key(self) -> dict[str, object]:
        """The consumer's."""
        return {"feed": self.feed, "consumer": self.consumer}

    @property
    def rows(self) -> dict[Shard, CursorRow]:
        """The consumer's cursors."""
        return rows_by_shard(self.connection, self.consumer, self.feed)

    def held_until(self, row: CursorRow, now: datetime) -> datetime | None:
        """Return when another user's lease on a shard expires; None if it is free or the holder's own."""
        is_free = row.lease_holder in (None, self.holder) or not row.is_held(now)
        return None if is_free else row.lease_expires

    def free(self, shards: Sequence[Shard]) -> list[Shard]:
        """Return the shards that may be acquired, those that the holder already has first."""
        rows, now = self.rows, self.database.now()
        free = [shard for shard in shards if shard in rows and self.held_until(rows[shard], now) is None]
        return sorted(free, key=lambda shard: rows[shard].lease_holder != self.holder)

    def is_worth_the_lock(self) -> bool:
        """Whether the write lock is worth taking: waiting consumers ask often."""
        if not self.rows.keys() >= set(self.shards) or self.free(self.shards):
            return True
        half = self.database.later(self.seconds / 2)
        return not _WAITERS.find(self.connection, {**self.key, "waiter": self.holder, "until >": half})

    def begin_shards(self, source: SqliteConsumers, info: ConsumerInfo) -> None:
        """Make the rows of the shards that the consumer has not begun."""
        tables, begun = load_feed(self.connection, self.feed), self.rows
        for shard in self.shards:
            check_shard(shard, tables.info.shard_key_type)
            if shard not in begun:
                # A shard refuses a cursor beyond its high-water time; all its later events are after its head
                # anyway.
                _, highest = shard_bounds(tables, shard)
                after = min(info.begin, highest)
                source.insert_cursor(tables, self.consumer, shard, after, self.holder, Began.CHOSEN)

    def check_free(self) -> None:
        """Raise LeaseHeldError if another holder has an unexpired lease on a shard."""
        rows, now = self.rows, self.database.now()
        for shard in self.shards:
            row = known_row(rows, self.consumer, self.feed, shard)
            if (expires := self.held_until(row, now)) is not None:
                raise LeaseHeldError(
                    f"consumer {self.consumer!r}, feed {self.feed!r}, shard {shard_text(shard)} is leased to "
                    f"{row.lease_holder!r} until {format_time(expires)}; retry then",
                    row=row,
                    holder=row.lease_holder,
                    expires=expires,
                )

    def change(self, tokens: Mapping[Shard, int], lease: Mapping[str, object]) -> list[Shard]:
        """Extend or release the holder's leases, and return the shards of those that it still has."""
        mine = {**self.key, "lease_holder": self.holder}
        return [
            mine_still
            for shard, token in tokens.items()
            for mine_still in _SHARDS.change(
                self.connection, {**mine, "shard": shard}, lease, fencing_token=token, keeps_version=True
            )
        ]

    def take(self, shards: Sequence[Shard], now: datetime) -> None:
        """Give the holder a new lease, with one token, on shards that are free."""
        lease = {"lease_holder": self.holder, "lease_expires": self.database.later(self.seconds)}
        # Not shown for exports.
        since = {"lease_since": now} if SETTINGS.find(self.connection, self.key) else {}
        lease |= {"fencing_token": _draw_token(self.connection), **since}
        for shard in shards:
            _SHARDS.change(self.connection, {**self.key, "shard": shard}, lease, keeps_version=True)

    def grant(self, held: Sequence[Shard] = ()) -> Grant:
        """Return the leases held by a call, and who else holds some or waits."""
        now, rows = self.database.now(), self.rows
        others = [self.held_until(rows[shard], now) for shard in self.shards if shard in rows]
        where = {**self.key, "waiter <>": self.holder, "until >": now}
        return Grant(
            {shard: rows[shard] for shard in held},
            now,
            min((until for until in others if until is not None), default=None),
            len(_WAITERS.find(self.connection, where)),
            bool(LETTERS.find(self.connection, {**self.key, "state": DeadLetterState.RETRY}, limit=1)),
        )

    def note_waiter(self, *, is_waiting: bool) -> None:
        """Register the holder as waiting, or unregister it; drop those that have expired."""
        now, mine = self.database.now(), {**self.key, "waiter": self.holder}
        until = {"until": self.database.later(self.seconds)}
        if not is_waiting:
            _WAITERS.remove(self.connection, mine)
        elif not _WAITERS.change(self.connection, mine, until, keeps_version=True):
            _WAITERS.add(self.connection, {**mine, **until, "since": now})
        _WAITERS.remove(self.connection, {**self.key, "until <=": now})


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
        tokens = tokens or {}
        with self.database.connect() as connection:
            request = _Request(self.database, connection, consumer, feed, holder, seconds, shards)
            if not all_or_none:
                load_consumer(connection, consumer, feed)
                if not tokens and not request.is_worth_the_lock():
                    return request.grant()
            with self.database.write(connection):
                now = self.database.now()
                if all_or_none:
                    load_feed(connection, feed)
                    request.check_free()
                else:
                    request.begin_shards(self, load_consumer(connection, consumer, feed))
                kept = request.change(tokens, {"lease_expires": self.database.later(seconds)})
                free = request.free([shard for shard in shards if shard not in tokens])[:at_most]
                if free:
                    request.take(free, now)
                if shards and not all_or_none:
                    request.note_waiter(
                        is_waiting=all(row.lease_holder != holder for row in request.rows.values())
                    )
                return request.grant([*kept, *free])

    def release_leases(self, consumer: str, feed: str, tokens: Mapping[Shard, int], *, holder: str) -> None:
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            request = _Request(self.database, connection, consumer, feed, holder)
            request.change(tokens, _RELEASED)
            request.note_waiter(is_waiting=False)

    def revoke_lease(self, consumer: str, feed: str, shard: Shard, *, fencing_token: int) -> None:
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            row = known_row(rows_by_shard(connection, consumer, feed), consumer, feed, shard)
            held = {**key_of(row), "lease_holder is not": None}
            if not CURSORS.change(
                connection, held, _RELEASED, fencing_token=fencing_token, keeps_version=True
            ):
                raise stale_lease(row, fencing_token)

    def leases(self, feed: str | None = None) -> list[LeaseInfo]:
        with self.database.connect() as connection, self.database.snapshot(connection):
            if feed is not None:
                load_feed(connection, feed)
            waiters: dict[tuple[str, str], list[Waiter]] = {}
            for row in _WAITERS.find(connection, {"until >": self.database.now()}):
                waiter = Waiter(row["waiter"], as_time(row["since"]))
                waiters.setdefault((row["feed"], row["consumer"]), []).append(waiter)

            def lease(row: Row) -> LeaseInfo:
                return lease_info(row, waiters.get((row["feed"], row["consumer"]), ()))

            return Records("consumer", lease, "feed, consumer, shard").find(connection, {"feed": feed})


def _draw_token(connection: sqlite3.Connection) -> int:
    """Draw a fencing token: higher than every one drawn in this database before."""
    (token,) = connection.execute('insert into "changefeed.lease" default values returning token').fetchone()
    connection.execute('delete from "changefeed.lease"')
    return int(token)
