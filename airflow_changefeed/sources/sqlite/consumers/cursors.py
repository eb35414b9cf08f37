# SPDX-License-Identifier: Apache-2.0
"""
The cursor rows of consumers, in SQLite: compare-and-set under a lease.

Hasura's resourceVersion; ADR 0004.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence

from airflow_changefeed.core.codec import encode
from airflow_changefeed.core.consumer import MAX_BY, OutputCheck
from airflow_changefeed.core.cursor import Began, CursorChange, CursorRow, Frontier, check_consumer
from airflow_changefeed.core.feed import Shard, check_shard, shard_text
from airflow_changefeed.core.times import to_milliseconds
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import ConsumerSetupError, InvalidArgumentError, storable
from airflow_changefeed.sources.base_cursors import CursorMove
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.consumers.cursor_history import changes_of, remember
from airflow_changefeed.sources.sqlite.consumers.cursor_rows import (
    check_lease,
    check_version,
    cursor_rows,
    first_version,
    known_row,
    rows_by_shard,
)
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, load_feed
from airflow_changefeed.sources.sqlite.feed.reader import check_beyond, check_purged

_WHERE = "where feed = ? and consumer = ? and shard = ?"


class SqliteCursors:
    """The part of the source that keeps cursors."""

    database: SqliteDatabase

    def cursors(self, feed: str, consumer: str | None = None) -> list[CursorRow]:
        with self.database.connect() as connection:
            load_feed(connection, feed)
            return cursor_rows(connection, feed, consumer)

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
            self.begin_on(connection, tables, consumer, starts, by=by, why=why, began=began)
            return cursor_rows(connection, feed, consumer)

    def begin_on(
        self,
        connection: sqlite3.Connection,
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
        _check_of_export(connection, feed, consumer)
        known = rows_by_shard(connection, consumer, feed)
        is_changed = False
        for shard, after in starts.items():
            check_shard(shard, tables.info.shard_key_type)
            row = known.get(shard)
            if row is None or after > row.ulid:
                # One that begins in the future would pass over all that comes until then.
                check_beyond(connection, tables, shard, after)
            if row is None:
                self.insert_cursor(connection, consumer, feed, shard, after, by, began)
            elif (frontier := row.frontier.begin_at(after)) != row.frontier:
                self._update(connection, row, frontier, min(row.ack, after), row.began, by)
            else:
                continue
            is_changed = True
        if is_changed:
            self.remembered(connection, consumer, feed, known, why)

    def remembered(
        self,
        connection: sqlite3.Connection,
        consumer: str,
        feed: str,
        before: Mapping[Shard, CursorRow],
        why: str | None,
    ) -> list[CursorRow]:
        """Write what was changed into the history, and return all rows as they are now."""
        rows = cursor_rows(connection, feed, consumer)
        remember(connection, before, rows, why)
        return rows

    def insert_cursor(
        self,
        connection: sqlite3.Connection,
        consumer: str,
        feed: str,
        shard: Shard,
        after: Ulid,
        by: str,
        began: Began = Began.CHOSEN,
    ) -> None:
        """Make the row of a shard that a consumer begins."""
        connection.execute(
            'insert into "changefeed.consumer" '
            "(consumer, feed, shard, start_ulid, ulid, began, ack, moved_at_ms, moved_by, resource_version) "
            "values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                consumer,
                feed,
                shard_text(shard),
                after.bytes,
                after.bytes,
                began.value,
                after.bytes,
                self.database.now_ms(),
                storable(by, MAX_BY),
                first_version(connection, feed, consumer),
            ),
        )

    def _update(
        self,
        connection: sqlite3.Connection,
        row: CursorRow,
        frontier: Frontier,
        ack: Ulid,
        began: Began,
        by: str,
    ) -> None:
        ahead, before = (
            json.dumps(encode(pieces, tuple[UlidRange, ...])) for pieces in (frontier.ahead, frontier.before)
        )
        connection.execute(
            'update "changefeed.consumer" set start_ulid = ?, ulid = ?, ahead = ?, before = ?, began = ?, '
            f"ack = ?, resource_version = resource_version + 1, moved_at_ms = ?, moved_by = ? {_WHERE}",
            (
                frontier.start.bytes,
                frontier.upto.bytes,
                ahead,
                before,
                began.value,
                ack.bytes,
                self.database.now_ms(),
                storable(by, MAX_BY),
                row.feed,
                row.consumer,
                shard_text(row.shard),
            ),
        )

    def move_cursors(
        self, consumer: str, feed: str, moves: Sequence[CursorMove], *, by: str, why: str | None = None
    ) -> list[CursorRow]:
        if len({move.shard for move in moves}) < len(moves):
            raise InvalidArgumentError(
                f"consumer {consumer!r}, feed {feed!r}: two moves for one shard; pass one"
            )
        with self.database.connect() as connection, self.database.write(connection):
            tables = load_feed(connection, feed)
            known = rows_by_shard(connection, consumer, feed)
            now = self.database.now()
            for move in moves:
                row = known_row(known, consumer, feed, move.shard)
                # The lease first: its loser may retry, whatever the new holder has moved meanwhile.
                check_lease(row, move.fencing_token, now)
                check_version(row, move.expected_version)
                furthest = move.frontier.ahead[-1].upto if move.frontier.ahead else move.frontier.upto
                check_beyond(connection, tables, move.shard, max(furthest, move.ack or Ulid.MIN))
                if move.is_rewind:
                    upto = move.frontier.upto
                    check_purged(connection, tables, move.shard, min(upto, move.ack or upto))
                self._update(connection, row, move.frontier, _ack(row, move), move.began or row.began, by)
            return self.remembered(connection, consumer, feed, known, why)

    def history(
        self, feed: str, consumer: str, *, shard: Shard | None = None, limit: int = 100
    ) -> list[CursorChange]:
        with self.database.connect() as connection:
            load_feed(connection, feed)
            return changes_of(connection, feed, consumer, shard, limit)

    def record_check(self, check: OutputCheck) -> None:
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, check.feed)
            connection.execute(
                'insert into "changefeed.output_check" '
                "(consumer, feed, path, checked_at_ms, checked_by, missing, first_ms) "
                "select ?1, ?2, ?3, min(?4, ?5), ?6, ?7, ?8 "
                'where exists (select 1 from "changefeed.consumer" where feed = ?2 and consumer = ?1) '
                "on conflict (feed, consumer) do update set path = excluded.path, "
                "checked_at_ms = excluded.checked_at_ms, checked_by = excluded.checked_by, "
                "missing = excluded.missing, first_ms = excluded.first_ms "
                "where checked_at_ms <= excluded.checked_at_ms",
                (
                    check.consumer,
                    check.feed,
                    check.path,
                    to_milliseconds(check.checked_at),
                    self.database.now_ms(),
                    storable(check.checked_by, MAX_BY),
                    check.missing,
                    None if check.first is None else to_milliseconds(check.first),
                ),
            )


def _ack(row: CursorRow, move: CursorMove) -> Ulid:
    """Return where the ack stands after a move."""
    if move.is_rewind:
        return move.ack if move.ack is not None else min(row.ack, move.frontier.upto)
    return row.ack if move.ack is None else max(row.ack, move.ack)


def _check_of_export(connection: sqlite3.Connection, feed: str, consumer: str) -> None:
    if connection.execute(
        'select 1 from "changefeed.consumer_settings" where feed = ? and consumer = ?', (feed, consumer)
    ).fetchone():
        raise ConsumerSetupError(
            f"consumer {consumer!r} of feed {feed!r} already exists and is not an export. Nothing was "
            "changed; choose another name for the export",
            consumer=consumer,
            feed=feed,
        )
