# SPDX-License-Identifier: Apache-2.0
"""
The cursor rows of consumers and their history, in SQLite: compare-and-set under a lease.

The version of a row is Hasura's ``resource_version`` (ADR 0004).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_changefeed.core.codec import decode_text
from airflow_changefeed.core.consumer import DeadLetter, OutputCheck
from airflow_changefeed.core.cursor import (
    KEPT_CHANGES,
    Began,
    CursorChange,
    CursorRow,
    Frontier,
    check_consumer,
)
from airflow_changefeed.core.feed import Shard, check_shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange, merge
from airflow_changefeed.exceptions import (
    ConsumerSetupError,
    InvalidArgumentError,
    LeaseLostError,
    ShardNotFoundError,
)
from airflow_changefeed.sources.base_consumers import CursorMove
from airflow_changefeed.sources.base_control import stale_cursor
from airflow_changefeed.sources.shared import (
    FRONTIER,
    RANGE,
    Row,
    as_row,
    as_value,
    consumer_info,
    cursor_change,
    row_of_cursor,
)
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, load_feed
from airflow_changefeed.sources.sqlite.feed.reader import check_beyond, check_purged
from airflow_changefeed.sources.sqlite.records import Records


def cursor_row(row: Row) -> CursorRow:
    """Return a row of the table."""
    return row_of_cursor(
        row["feed"], row, lambda text: decode_text(tuple[UlidRange, ...], text, named="a frontier")
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


HISTORY = Records("cursor_history", lambda row: cursor_change(row["feed"], row), "number desc")


def remember(
    connection: sqlite3.Connection, before: CursorRow | None, after: CursorRow, why: str | None
) -> None:
    """
    Write a change of a row, in the transaction that made it.

    :param before: the row as it was; None if it was made.
    """
    values = {
        **key_of(after),
        "before_ulid": None if before is None else before.ulid,
        "after_ulid": after.ulid,
        "resource_version": after.resource_version,
        "moved_at": after.moved_at,
        "moved_by": after.moved_by,
        "why": why,
    }
    HISTORY.add(connection, values)
    connection.execute(
        'delete from "changefeed.cursor_history" where consumer = ?1 and feed = ?2 and shard = ?3 '
        'and number <= (select number from "changefeed.cursor_history" '
        "where consumer = ?1 and feed = ?2 and shard = ?3 order by number desc limit 1 offset ?4)",
        (after.consumer, after.feed, shard_text(after.shard), KEPT_CHANGES),
    )


class SqliteCursors:
    """The part of the source that keeps cursors."""

    database: SqliteDatabase

    def cursors(self, feed: str, consumer: str | None = None) -> list[CursorRow]:
        with self.database.connect() as connection:
            load_feed(connection, feed)
            return CURSORS.find(connection, {"feed": feed, "consumer": consumer})

    def begin_consumer(
        self,
        consumer: str,
        feed: str,
        starts: Mapping[Shard, Ulid],
        *,
        by: str,
        why: str | None = None,
        began: Began = Began.IMPLIED,
    ) -> list[CursorRow]:
        with self.database.connect() as connection, self.database.write(connection):
            tables = load_feed(connection, feed)
            self.begin_on(tables, consumer, starts, by=by, why=why, began=began)
            return CURSORS.find(connection, {"feed": feed, "consumer": consumer})

    def begin_on(
        self,
        tables: FeedTables,
        consumer: str,
        starts: Mapping[Shard, Ulid],
        *,
        by: str,
        why: str | None = None,
        began: Began = Began.IMPLIED,
    ) -> None:
        """Ensure that an export has rows, in a write transaction."""
        check_consumer(consumer)
        feed = tables.info.name
        if SETTINGS.find(tables.connection, {"feed": feed, "consumer": consumer}):
            raise ConsumerSetupError(
                f"consumer {consumer!r} of feed {feed!r} already exists and is not an export. Nothing was "
                "changed; choose another name for the export",
                consumer=consumer,
                feed=feed,
            )
        known = rows_by_shard(tables.connection, consumer, feed)
        for shard in sorted(starts, key=shard_text):
            check_shard(shard, tables.info.shard_key_type)
            after, row = starts[shard], known.get(shard)
            if row is None or after > row.ulid:
                # One that begins in the future would pass over all that comes until then.
                check_beyond(tables, shard, after)
            if row is None:
                now = self.insert_cursor(tables, consumer, shard, after, by, began)
                remember(tables.connection, None, now, why)
            elif (frontier := row.frontier.begin_at(after)) != row.frontier:
                ack = min(row.ack, after)
                move = CursorMove(
                    shard, frontier, row.resource_version, row.fencing_token, ack, is_rewind=True
                )
                self._update(tables, row, move, by, why)

    def insert_cursor(
        self, tables: FeedTables, consumer: str, shard: Shard, after: Ulid, by: str, began: Began
    ) -> CursorRow:
        """Make the row of a shard that a consumer begins."""
        feed = tables.info.name
        values = self._moved(Frontier.beginning(after), after, began, by)
        version = first_version(tables.connection, feed, consumer)
        key = {"feed": feed, "consumer": consumer, "shard": shard}
        return CURSORS.add(tables.connection, {**key, **values, "resource_version": version})

    def _moved(self, frontier: Frontier, ack: Ulid, began: Began, by: str) -> dict[str, Any]:
        """Return what a row has of a move."""
        position = {**as_row(frontier, FRONTIER), "ack": ack, "began": began}
        return {**position, "moved_at": self.database.now(), "moved_by": by}

    def _update(
        self, tables: FeedTables, row: CursorRow, move: CursorMove, by: str, why: str | None, **lease: object
    ) -> bool:
        """
        Move a row, and write it into the history; False if the row is no longer as the move expects it.

        :param lease: what must hold of its lease besides the token.
        """
        changed = CURSORS.change(
            tables.connection,
            {**key_of(row), **lease},
            self._moved(move.frontier, _ack(row, move), move.began or row.began, by),
            expected_version=move.expected_version,
            fencing_token=move.fencing_token,
        )
        for now in changed:
            remember(tables.connection, row, now, why)
        return bool(changed)

    def move_cursors(
        self, consumer: str, feed: str, moves: Sequence[CursorMove], *, by: str, why: str | None = None
    ) -> list[CursorRow]:
        if len({move.shard for move in moves}) < len(moves):
            raise InvalidArgumentError(
                f"consumer {consumer!r}, feed {feed!r}: two moves for one shard; pass one move for each shard"
            )
        with self.database.connect() as connection, self.database.write(connection):
            tables = load_feed(connection, feed)
            known = rows_by_shard(connection, consumer, feed)
            now = self.database.now()
            for move in sorted(moves, key=lambda move: shard_text(move.shard)):
                row, frontier = known_row(known, consumer, feed, move.shard), move.frontier
                lease = {"lease_expires >": now}
                if not self._update(tables, row, move, by, why, **lease):
                    remedy = ". Acquire the lease again"
                    raise refusal(row, move.expected_version, move.fencing_token, remedy, now)
                furthest = frontier.ahead[-1].upto if frontier.ahead else frontier.upto
                check_beyond(tables, move.shard, max(furthest, move.ack or Ulid.MIN))
                if move.is_rewind:
                    upto = min(frontier.upto, move.ack or frontier.upto)
                    check_purged(tables, move.shard, upto)
            return CURSORS.find(connection, {"feed": feed, "consumer": consumer})

    def history(
        self, feed: str, consumer: str, *, shard: Shard | None = None, limit: int = 100
    ) -> list[CursorChange]:
        with self.database.connect() as connection:
            load_feed(connection, feed)
            where = {"feed": feed, "consumer": consumer, "shard": shard}
            return HISTORY.find(connection, where, limit=limit)

    def record_check(self, check: OutputCheck) -> None:
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, check.feed)
            key = {"feed": check.feed, "consumer": check.consumer}
            checked_at = min(check.checked_at, self.database.now())
            if not CURSORS.find(connection, key, limit=1):
                return
            CHECKS.remove(connection, {**key, "checked_at <=": checked_at})
            if not CHECKS.find(connection, key):
                CHECKS.add(connection, as_row(replace(check, checked_at=checked_at), {}))


def _ack(row: CursorRow, move: CursorMove) -> Ulid:
    """Return where the ack stands after a move."""
    if move.is_rewind:
        return move.ack if move.ack is not None else min(row.ack, move.frontier.upto)
    return row.ack if move.ack is None else max(row.ack, move.ack)
