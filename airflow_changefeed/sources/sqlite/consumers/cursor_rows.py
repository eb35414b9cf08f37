# SPDX-License-Identifier: Apache-2.0
"""The rows of cursors in SQLite: how they are read, and whose they are to change."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from airflow_changefeed.core.codec import decode_text
from airflow_changefeed.core.consumer import DeadLetter, OutputCheck
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange, merge
from airflow_changefeed.exceptions import LeaseLostError, ShardNotFoundError
from airflow_changefeed.sources.base_versions import stale_cursor
from airflow_changefeed.sources.rows import RANGE, Row, as_row, as_value, consumer_info, row_of_cursor
from airflow_changefeed.sources.sqlite.records import Records


def cursor_row(row: Row) -> CursorRow:
    """Return a row of the table."""
    return row_of_cursor(
        row["feed"], row, lambda text: decode_text(tuple[UlidRange, ...], text, where="a frontier")
    )


CURSORS = Records("consumer", cursor_row, "consumer, shard")
CHECKS = Records("output_check", lambda row: as_value(OutputCheck, row), "feed, consumer")
SETTINGS = Records("consumer_settings", consumer_info, "feed, consumer")
_DROPPED = Records("dropped_consumer", lambda row: int(row["resource_version"]))
#: Ranges of a shard that dropped consumers had acknowledged.
ACKNOWLEDGED = Records("acknowledged", lambda row: as_value(UlidRange, row, RANGE), "after_ulid")


def key_of(row: CursorRow | DeadLetter) -> dict[str, Any]:
    """Return the key of a cursor's row, and of all that is kept of its consumer and shard."""
    return {"feed": row.feed, "consumer": row.consumer, "shard": row.shard}


def rows_by_shard(connection: sqlite3.Connection, consumer: str, feed: str) -> dict[Shard, CursorRow]:
    """Return the cursor rows of a consumer by their shards."""
    return {row.shard: row for row in CURSORS.find(connection, {"feed": feed, "consumer": consumer})}


def first_version(connection: sqlite3.Connection, feed: str, consumer: str) -> int:
    """Return the version at which a consumer, or its row, begins: above those of earlier ones of its name."""
    dropped = _DROPPED.find(connection, {"feed": feed, "consumer": consumer})
    return max(dropped, default=0) + 1


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


def remember_acknowledged(connection: sqlite3.Connection, feed: str, rows: Iterable[CursorRow]) -> None:
    """Keep what the rows of a consumer that is about to be dropped had acknowledged."""
    for row in rows:
        known = ACKNOWLEDGED.find(connection, {"feed": feed, "shard": row.shard})
        ranges = [one for one in row.acknowledged if not one.is_empty]
        _keep_acknowledged(connection, feed, row.shard, [*known, *ranges])


def forget_acknowledged(connection: sqlite3.Connection, feed: str, shard: Shard, purged_upto: Ulid) -> None:
    """Forget what dropped consumers had acknowledged of purged events."""
    known = ACKNOWLEDGED.find(connection, {"feed": feed, "shard": shard})
    if known and known[0].after < purged_upto:
        left = [UlidRange(max(one.after, purged_upto), one.upto) for one in known if one.upto > purged_upto]
        _keep_acknowledged(connection, feed, shard, left)


def _keep_acknowledged(
    connection: sqlite3.Connection, feed: str, shard: Shard, ranges: Iterable[UlidRange]
) -> None:
    key = {"feed": feed, "shard": shard}
    ACKNOWLEDGED.remove(connection, key)
    for one in merge(ranges):
        ACKNOWLEDGED.add(connection, {**key, **as_row(one, RANGE)})


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


def refusal(
    row: CursorRow, expected_version: int, fencing_token: int, remedy: str, now: datetime | None = None
) -> Exception:
    """
    Return why a change was refused of a row that somebody else has changed, or has the lease of.

    :param remedy: what who has lost the lease does next.
    :param now: of the database, where a lease that has expired is lost, too; None where it is the holder's
        until another gets it.
    """
    is_over = row.lease_holder is None if now is None else not row.is_held(now)
    # The lease first: its loser may retry, whatever the new holder has moved meanwhile.
    if row.fencing_token == fencing_token and not is_over:
        return stale_cursor(row, expected_version)
    return LeaseLostError(
        f"lease {fencing_token} on consumer {row.consumer!r}, feed {row.feed!r}, shard "
        f"{shard_text(row.shard)} is lost (newest lease {row.fencing_token}, held by {row.lease_holder!r}): "
        f"nothing was written{remedy}",
        row=row,
        fencing_token=fencing_token,
    )
