# SPDX-License-Identifier: Apache-2.0
"""The rows of cursors in SQLite: how they are read, and whose they are to change."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from datetime import datetime

from airflow_changefeed.core.codec import decode_text
from airflow_changefeed.core.consumer import OutputCheck
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange, merge
from airflow_changefeed.exceptions import LeaseLostError, ShardNotFoundError
from airflow_changefeed.sources.base_versions import stale_cursor
from airflow_changefeed.sources.rows import Row, output_check, row_of_cursor
from airflow_changefeed.sources.sqlite.connection import records


def cursor_rows(
    connection: sqlite3.Connection, feed: str, consumer: str | None, shard: Shard | None = None
) -> list[CursorRow]:
    """
    Return cursor rows of a feed.

    :param consumer: None for all.
    :param shard: likewise.
    """
    rows = records(
        connection,
        'select * from "changefeed.consumer" where feed = ?1 and (?2 is null or consumer = ?2) '
        "and (?3 is null or shard = ?3) order by consumer, shard",
        (feed, consumer, None if shard is None else shard_text(shard)),
    )
    return [cursor_row(row) for row in rows]


def rows_by_shard(connection: sqlite3.Connection, consumer: str, feed: str) -> dict[Shard, CursorRow]:
    """Return the cursor rows of a consumer by their shards."""
    return {row.shard: row for row in cursor_rows(connection, feed, consumer)}


def output_checks(connection: sqlite3.Connection) -> list[OutputCheck]:
    """Return what the newest looks at the outputs of all exports found, by feed and consumer."""
    rows = records(
        connection,
        'select *, first_ms as first_missing from "changefeed.output_check" order by feed, consumer',
    )
    return [output_check(row["feed"], row) for row in rows]


def first_version(connection: sqlite3.Connection, feed: str, consumer: str) -> int:
    """Return the version at which a consumer, or its row, begins: above those of earlier ones of its name."""
    (last,) = connection.execute(
        'select coalesce(max(resource_version), 0) from "changefeed.dropped_consumer" '
        "where feed = ? and consumer = ?",
        (feed, consumer),
    ).fetchone()
    return int(last) + 1


def end_consumers(connection: sqlite3.Connection, feed: str, consumer: str | None = None) -> None:
    """
    Keep the highest versions of a consumer that is about to be dropped.

    :param consumer: None for all of the feed.
    """
    for table in ("consumer", "consumer_settings"):
        connection.execute(
            'insert into "changefeed.dropped_consumer" (feed, consumer, resource_version) '
            f'select feed, consumer, max(resource_version) from "changefeed.{table}" '
            "where feed = ?1 and (?2 is null or consumer = ?2) group by feed, consumer "
            "on conflict (feed, consumer) do update "
            "set resource_version = max(resource_version, excluded.resource_version)",
            (feed, consumer),
        )


def acknowledged(connection: sqlite3.Connection, feed: str, shard: Shard) -> list[UlidRange]:
    """Return the ranges of a shard that dropped consumers had acknowledged, ascending."""
    rows = connection.execute(
        'select after_ulid, upto_ulid from "changefeed.acknowledged" where feed = ? and shard = ? '
        "order by after_ulid",
        (feed, shard_text(shard)),
    )
    return [UlidRange(Ulid.of_bytes(after), Ulid.of_bytes(upto)) for after, upto in rows]


def remember_acknowledged(connection: sqlite3.Connection, feed: str, rows: Iterable[CursorRow]) -> None:
    """Keep what the rows of a consumer that is about to be dropped had acknowledged."""
    for row in rows:
        known = acknowledged(connection, feed, row.shard)
        ranges = [one for one in row.acknowledged if not one.is_empty]
        _keep_acknowledged(connection, feed, row.shard, [*known, *ranges])


def forget_acknowledged(connection: sqlite3.Connection, feed: str, shard: Shard, purged_upto: Ulid) -> None:
    """Forget what dropped consumers had acknowledged of purged events."""
    known = acknowledged(connection, feed, shard)
    if known and known[0].after < purged_upto:
        left = [UlidRange(max(one.after, purged_upto), one.upto) for one in known if one.upto > purged_upto]
        _keep_acknowledged(connection, feed, shard, left)


def _keep_acknowledged(
    connection: sqlite3.Connection, feed: str, shard: Shard, ranges: Iterable[UlidRange]
) -> None:
    key = (feed, shard_text(shard))
    connection.execute('delete from "changefeed.acknowledged" where feed = ? and shard = ?', key)
    connection.executemany(
        'insert into "changefeed.acknowledged" (feed, shard, after_ulid, upto_ulid) values (?, ?, ?, ?)',
        [(*key, one.after.bytes, one.upto.bytes) for one in merge(ranges)],
    )


def cursor_row(row: Row) -> CursorRow:
    """Return a row of the table."""
    return row_of_cursor(
        row["feed"], row, lambda text: decode_text(tuple[UlidRange, ...], text, where="a frontier")
    )


def known_row(rows: Mapping[Shard, CursorRow], consumer: str, feed: str, shard: Shard) -> CursorRow:
    """Return a shard's row of those of a consumer, or raise ShardNotFoundError."""
    if shard not in rows:
        raise ShardNotFoundError(
            f"consumer {consumer!r} has no cursor for shard {shard_text(shard)} of feed {feed!r}; create it "
            "first (begin_consumer)",
            consumer=consumer,
            feed=feed,
            shard=shard,
        )
    return rows[shard]


def check_version(row: CursorRow, expected: int) -> None:
    """Raise StaleVersionError when a row was changed since its reader saw it."""
    if row.resource_version != expected:
        raise stale_cursor(row, expected)


def check_lease(row: CursorRow, token: int, now: datetime) -> None:
    """Raise LeaseLostError if the mover no longer holds the row's lease."""
    if row.fencing_token != token or row.lease_expires is None or row.lease_expires <= now:
        raise LeaseLostError(
            f"lease {token} on consumer {row.consumer!r}, feed {row.feed!r}, shard {shard_text(row.shard)} "
            f"is lost (newest lease {row.fencing_token}, held by {row.lease_holder!r}): nothing was written. "
            "Acquire the lease again",
            row=row,
            fencing_token=token,
        )
