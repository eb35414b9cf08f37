# SPDX-License-Identifier: Apache-2.0
"""
The cursor rows of consumers, in SQLite: compare-and-set under a lease.

Hasura's resourceVersion; ADR 0004.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from airflow_changefeed.core.cursor import CursorRow, check_consumer
from airflow_changefeed.core.feed import Shard, check_shard, parse_shard, shard_text
from airflow_changefeed.core.frontier import Frontier
from airflow_changefeed.core.times import format_time, from_milliseconds
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.unit import range_from, range_to
from airflow_changefeed.exceptions import (
    ConsumerSetupError,
    InvalidArgumentError,
    LeaseHeldError,
    LeaseLostError,
    ShardNotFoundError,
    StaleVersionError,
)
from airflow_changefeed.sources.base_cursors import CursorMove
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.names import CONSUMER_TABLES, load_feed, present
from airflow_changefeed.sources.sqlite.reader import check_beyond

_COLUMNS = (
    "consumer, feed, shard, start_ulid, ulid, ahead, ack, resource_version, moved_at_ms, moved_by, "
    "lease_token, lease_holder, lease_expires_ms"
)
#: Seconds of a year: the longest a lease may last.
MAX_LEASE = 366 * 86_400
_WHERE = "where feed = ? and consumer = ? and shard = ?"


class SqliteCursors:
    """The part of the source that keeps cursors."""

    database: SqliteDatabase

    def cursors(self, feed: str, consumer: str | None = None) -> list[CursorRow]:
        """See :class:`~airflow_changefeed.sources.base.CursorStore`, also for all that follows."""
        with self.database.connect() as connection:
            load_feed(connection, feed)
            return cursor_rows(connection, feed, consumer)

    def begin_consumer(
        self, consumer: str, feed: str, starts: Mapping[Shard, Ulid], *, by: str
    ) -> list[CursorRow]:
        """See the protocol."""
        check_consumer(consumer)
        with self.database.connect() as connection, self.database.write(connection):
            tables = load_feed(connection, feed)
            _check_of_export(connection, feed, consumer)
            known = {row.shard: row for row in cursor_rows(connection, feed, consumer)}
            for shard, after in starts.items():
                check_shard(shard, tables.info.shard_key_type)
                # One that begins in the future would pass over all that comes until then.
                check_beyond(connection, tables, shard, after)
                row = known.get(shard)
                if row is None:
                    self.insert_cursor(connection, consumer, feed, shard, after, by)
                elif (frontier := row.frontier.begin_at(after)) != row.frontier:
                    self._update(connection, row, frontier, min(row.ack, after), by)
            return cursor_rows(connection, feed, consumer)

    def insert_cursor(
        self, connection: sqlite3.Connection, consumer: str, feed: str, shard: Shard, after: Ulid, by: str
    ) -> None:
        """Make the row of a shard that a consumer begins."""
        connection.execute(
            'insert into "changefeed.consumer" '
            "(consumer, feed, shard, start_ulid, ulid, ack, moved_at_ms, moved_by) "
            "values (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                consumer,
                feed,
                shard_text(shard),
                after.bytes,
                after.bytes,
                after.bytes,
                self.database.now_ms(),
                by,
            ),
        )

    def _update(
        self, connection: sqlite3.Connection, row: CursorRow, frontier: Frontier, ack: Ulid, by: str
    ) -> None:
        ahead = json.dumps([range_to(piece) for piece in frontier.ahead])
        connection.execute(
            'update "changefeed.consumer" set start_ulid = ?, ulid = ?, ahead = ?, ack = ?, '
            f"resource_version = resource_version + 1, moved_at_ms = ?, moved_by = ? {_WHERE}",
            (
                frontier.start.bytes,
                frontier.upto.bytes,
                ahead,
                ack.bytes,
                self.database.now_ms(),
                by,
                row.feed,
                row.consumer,
                shard_text(row.shard),
            ),
        )

    def take_lease(
        self, consumer: str, feed: str, shards: Sequence[Shard], *, holder: str, seconds: float
    ) -> dict[Shard, int]:
        """See the protocol."""
        check_lease_seconds(seconds)
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            known = {row.shard: row for row in cursor_rows(connection, feed, consumer)}
            now_ms = self.database.now_ms()
            for shard in shards:
                _check_free(_known(known, consumer, feed, shard), holder, from_milliseconds(now_ms))
            token = draw_token(connection)
            connection.executemany(
                'update "changefeed.consumer" set lease_token = ?, lease_holder = ?, lease_expires_ms = ? '
                f"{_WHERE}",
                [
                    (token, holder, now_ms + int(seconds * 1000), feed, consumer, shard_text(shard))
                    for shard in shards
                ],
            )
            return dict.fromkeys(shards, token)

    def release_lease(self, consumer: str, feed: str, tokens: Mapping[Shard, int]) -> None:
        """See the protocol."""
        with self.database.connect() as connection, self.database.write(connection):
            connection.executemany(
                'update "changefeed.consumer" set lease_holder = null, lease_expires_ms = null '
                f"{_WHERE} and lease_token = ?",
                [(feed, consumer, shard_text(shard), token) for shard, token in tokens.items()],
            )

    def move_cursors(
        self, consumer: str, feed: str, moves: Sequence[CursorMove], *, by: str
    ) -> list[CursorRow]:
        """See the protocol."""
        if len({move.shard for move in moves}) < len(moves):
            raise InvalidArgumentError(
                f"consumer {consumer!r}, feed {feed!r}: two moves of one shard; give one"
            )
        with self.database.connect() as connection, self.database.write(connection):
            tables = load_feed(connection, feed)
            known = {row.shard: row for row in cursor_rows(connection, feed, consumer)}
            now = self.database.now()
            for move in moves:
                row = _known(known, consumer, feed, move.shard)
                # The lease first: who lost it may try again, whatever the new holder has moved meanwhile.
                _check_lease(row, move.lease_token, now)
                check_version(row, move.expected_version)
                furthest = move.frontier.ahead[-1].upto if move.frontier.ahead else move.frontier.upto
                check_beyond(connection, tables, move.shard, max(furthest, move.ack or Ulid.MIN))
                ack = row.ack if move.ack is None else max(row.ack, move.ack)
                self._update(connection, row, move.frontier, ack, by)
            return cursor_rows(connection, feed, consumer)

    def drop_consumer(self, consumer: str, feed: str) -> None:
        """See the protocol."""
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            for name in ("consumer", *present(connection, CONSUMER_TABLES)):
                connection.execute(
                    f'delete from "changefeed.{name}" where feed = ? and consumer = ?', (feed, consumer)
                )


def check_lease_seconds(seconds: float) -> None:
    """Raise InvalidArgumentError for a time that no lease can last."""
    if not 0 < seconds <= MAX_LEASE:
        raise InvalidArgumentError(f"a lease must last 0 (exclusive) to {MAX_LEASE} seconds, not {seconds}")


def draw_token(connection: sqlite3.Connection) -> int:
    """Draw a lease token: higher than every one drawn in this database before."""
    (token,) = connection.execute('insert into "changefeed.lease" default values returning token').fetchone()
    connection.execute('delete from "changefeed.lease"')
    return int(token)


def cursor_rows(connection: sqlite3.Connection, feed: str, consumer: str | None) -> list[CursorRow]:
    """Return the rows of a feed's consumer, or of all of them."""
    rows = connection.execute(
        f'select {_COLUMNS} from "changefeed.consumer" where feed = ?1 and (?2 is null or consumer = ?2) '
        "order by consumer, shard",
        (feed, consumer),
    )
    return [_row(*row) for row in rows]


def _row(*values: Any) -> CursorRow:
    consumer, feed, shard, start, upto, ahead, ack, version, moved_at, moved_by, token, holder, expires = (
        values
    )
    pieces: tuple[UlidRange, ...] = tuple(range_from(piece) for piece in json.loads(ahead))
    return CursorRow(
        consumer=consumer,
        feed=feed,
        shard=parse_shard(shard),
        frontier=Frontier(Ulid.of_bytes(start), Ulid.of_bytes(upto), pieces),
        resource_version=version,
        moved_at=from_milliseconds(moved_at),
        moved_by=moved_by,
        lease_token=token,
        lease_holder=holder,
        lease_expires=from_milliseconds(expires) if expires is not None else None,
        ack=Ulid.of_bytes(ack),
    )


def _known(rows: Mapping[Shard, CursorRow], consumer: str, feed: str, shard: Shard) -> CursorRow:
    if shard not in rows:
        raise ShardNotFoundError(
            f"consumer {consumer!r} has no cursor for shard {shard_text(shard)} of feed {feed!r}; begin it "
            "first (begin_consumer)",
            consumer=consumer,
            feed=feed,
            shard=shard,
        )
    return rows[shard]


def _check_of_export(connection: sqlite3.Connection, feed: str, consumer: str) -> None:
    if (
        present(connection, ("consumer_settings",))
        and connection.execute(
            'select 1 from "changefeed.consumer_settings" where feed = ? and consumer = ?', (feed, consumer)
        ).fetchone()
    ):
        raise ConsumerSetupError(
            f"consumer {consumer!r} of feed {feed!r} is one of events, which has settings: an export needs a "
            "name of its own. Nothing was changed",
            consumer=consumer,
            feed=feed,
        )


def check_version(row: CursorRow, expected: int) -> None:
    """Raise StaleVersionError when a row was changed since its reader saw it."""
    if row.resource_version != expected:
        raise StaleVersionError(
            f"cursor of consumer {row.consumer!r}, feed {row.feed!r}, shard {shard_text(row.shard)} is at "
            f"resource version {row.resource_version} ({row.ulid}, moved by {row.moved_by!r}), not {expected}"
            ": nothing was changed. Read it again and decide anew",
            row=row,
            expected_version=expected,
            present_version=row.resource_version,
        )


def _check_lease(row: CursorRow, token: int, now: datetime) -> None:
    if row.lease_token != token or row.lease_expires is None or row.lease_expires <= now:
        raise LeaseLostError(
            f"lease {token} on consumer {row.consumer!r}, feed {row.feed!r}, shard {shard_text(row.shard)} "
            f"is lost (newest grant {row.lease_token}, held by {row.lease_holder!r}): nothing was written. "
            "Take the lease again",
            row=row,
            lease_token=token,
        )


def _check_free(row: CursorRow, holder: str, now: datetime) -> None:
    if row.lease_holder in (None, holder) or row.lease_expires is None or row.lease_expires <= now:
        return
    raise LeaseHeldError(
        f"consumer {row.consumer!r}, feed {row.feed!r}, shard {shard_text(row.shard)} is leased to "
        f"{row.lease_holder!r} until {format_time(row.lease_expires)}: retry then",
        row=row,
        holder=row.lease_holder,
        expires=row.lease_expires,
    )
