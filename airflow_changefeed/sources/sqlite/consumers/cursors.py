# SPDX-License-Identifier: Apache-2.0
"""
The cursor rows of consumers, in SQLite: compare-and-set under a lease.

Hasura's resourceVersion; ADR 0004.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from airflow_changefeed.core.consumer import OutputCheck
from airflow_changefeed.core.cursor import Began, CursorChange, CursorRow, Frontier, check_consumer
from airflow_changefeed.core.feed import Shard, check_shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ConsumerSetupError, InvalidArgumentError
from airflow_changefeed.sources.base_cursors import CursorMove
from airflow_changefeed.sources.rows import FRONTIER, as_row
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.consumers.cursor_history import HISTORY, remember
from airflow_changefeed.sources.sqlite.consumers.cursor_rows import (
    CHECKS,
    CURSORS,
    SETTINGS,
    first_version,
    key_of,
    known_row,
    refusal,
    rows_by_shard,
)
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, load_feed
from airflow_changefeed.sources.sqlite.feed.reader import check_beyond, check_purged


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
                f"consumer {consumer!r}, feed {feed!r}: two moves for one shard; pass one"
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
