# SPDX-License-Identifier: Apache-2.0
"""
Recording the rows that captured tables already have as events, in SQLite, while others write.

A reset begins it. Then short transactions record some rows each, in the order of the primary key, and an
event says when all are recorded. A row that changes meanwhile has its events before or behind that of its
row, so in the end the last event of each key is right. What has begun is a snapshot like any other, into the
feed.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Sequence

from airflow_changefeed.core.times import from_milliseconds
from airflow_changefeed.sources.base_snapshots import INTO_FEED, PROTECTED, KeyRange, held_snapshot
from airflow_changefeed.sources.sqlite.capture.keys import key_behind
from airflow_changefeed.sources.sqlite.capture.record import record_range, record_ready, record_reset
from airflow_changefeed.sources.sqlite.capture.snapshots import INSTALLED, claims, forget, renew
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, load_feed, present
from airflow_changefeed.sources.sqlite.install.setup import install

#: Rows of a transaction: as many as take so long, so that no writer waits longer.
_SECONDS = 0.05
_FIRST_ROWS, _MOST_ROWS = 100, 5_000


def begin_recording(
    connection: sqlite3.Connection, tables: FeedTables, numbers: Sequence[int], now_ms: int, by: str
) -> None:
    """
    Begin to record all rows of tables, in the current transaction; what has begun of them begins again.

    :param numbers: of the tables in the capture.
    :raises SnapshotError: a snapshot of one of them runs into an output.
    """
    if tables.capture is None or not numbers:
        return
    install(connection, INSTALLED)
    feed = tables.info.name
    begun = {claim.table: claim for claim in claims(connection, feed)}
    for number in numbers:
        table = tables.capture.tables[number].name
        other = begun.get(table)
        if other is not None:
            if other.path != INTO_FEED and other.expires_at > from_milliseconds(now_ms):
                raise held_snapshot(other)
            forget(connection, (feed, table, other.token))
        connection.execute(
            'insert into "changefeed.snapshot" '
            "(capture, table_name, token, path, begin_ms, begun_by, expires_ms, where_text) "
            "values (?, ?, ?, ?, ?, ?, ?, '')",
            (feed, table, secrets.token_hex(16), INTO_FEED, now_ms, by, now_ms + int(PROTECTED * 1000)),
        )
        record_reset(connection, tables, number, now_ms)


def is_recording(connection: sqlite3.Connection, feed: str) -> bool:
    """Whether the recording of rows has begun for a table of a capture, and has not ended."""
    if not present(connection, ("snapshot",)):
        return False
    return any(claim.path == INTO_FEED for claim in claims(connection, feed))


def stop_recording(connection: sqlite3.Connection, feed: str) -> None:
    """Forget what has begun; it stays without an end."""
    if is_recording(connection, feed):
        for claim in claims(connection, feed):
            if claim.path == INTO_FEED:
                forget(connection, (feed, claim.table, claim.token))


def record_begun(database: SqliteDatabase, feed: str) -> None:
    """
    Go on with what has begun, until nothing is left; several may do so, and take turns.

    After each transaction, writers have as long as it took.
    """
    rows = _FIRST_ROWS
    while True:
        with database.connect() as connection:
            started = time.monotonic()
            with database.write(connection):
                if not _record_some(connection, database, feed, rows):
                    return
            took = time.monotonic() - started
        rows = max(1, min(_MOST_ROWS, 2 * rows, int(rows * _SECONDS / max(took, 0.001))))
        time.sleep(took)


def _record_some(connection: sqlite3.Connection, database: SqliteDatabase, feed: str, rows: int) -> bool:
    """Record the next rows of the first table that is not complete; return whether there was one."""
    tables = load_feed(connection, feed)
    if tables.capture is None or not is_recording(connection, feed):
        return False
    claim = next(claim for claim in claims(connection, feed) if claim.path == INTO_FEED)
    mine = (feed, claim.table, claim.token)
    number = [table.name for table in tables.capture.tables].index(claim.table)
    table = tables.capture.tables[number]
    renew(connection, mine, database.now_ms() + int(PROTECTED * 1000))
    after = connection.execute(
        'select mark from "changefeed.snapshot_mark" where capture = ? and table_name = ? and token = ?', mine
    ).fetchone()
    range_ = KeyRange(after and after[0])
    if table.key_columns:
        range_ = KeyRange(range_.after, key_behind(connection, feed, table, range_.after, rows))
    now_ms = database.now_ms()
    record_range(connection, tables, number, range_, now_ms)
    if range_.upto is None:
        record_ready(connection, tables, number, now_ms)
        forget(connection, mine)
        return True
    connection.execute(
        'delete from "changefeed.snapshot_mark" where capture = ? and table_name = ? and token = ?', mine
    )
    connection.execute(
        'insert into "changefeed.snapshot_mark" (capture, table_name, token, mark, is_read) '
        "values (?, ?, ?, ?, 1)",
        (*mine, range_.upto),
    )
    return True
