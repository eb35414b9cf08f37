# SPDX-License-Identifier: Apache-2.0
"""The history of cursors, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from airflow_changefeed.core.consumer import MAX_REASON
from airflow_changefeed.core.cursor import KEPT_CHANGES, CursorChange, CursorRow
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.times import to_milliseconds
from airflow_changefeed.exceptions import storable
from airflow_changefeed.sources.rows import cursor_change
from airflow_changefeed.sources.sqlite.connection import records

_COLUMNS = "consumer, feed, shard, before_ulid, after_ulid, resource_version, moved_at_ms, moved_by, why"


def remember(
    connection: sqlite3.Connection,
    before: Mapping[Shard, CursorRow],
    after: Sequence[CursorRow],
    why: str | None,
) -> None:
    """
    Write what was changed of a consumer's rows, in the transaction that changed them.

    :param before: the rows as they were; one that is missing was made.
    :param after: all rows as they are now.
    """
    for row in after:
        old = before.get(row.shard)
        if old is not None and old.resource_version == row.resource_version:
            continue
        key = (row.consumer, row.feed, shard_text(row.shard))
        connection.execute(
            f'insert into "changefeed.cursor_history" ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?)',
            (
                *key,
                None if old is None else old.ulid.bytes,
                row.ulid.bytes,
                row.resource_version,
                to_milliseconds(row.moved_at),
                row.moved_by,
                why and storable(why, MAX_REASON),
            ),
        )
        connection.execute(
            'delete from "changefeed.cursor_history" where consumer = ?1 and feed = ?2 and shard = ?3 '
            'and number <= (select number from "changefeed.cursor_history" '
            "where consumer = ?1 and feed = ?2 and shard = ?3 order by number desc limit 1 offset ?4)",
            (*key, KEPT_CHANGES),
        )


def changes_of(
    connection: sqlite3.Connection, feed: str, consumer: str, shard: Shard | None, limit: int
) -> list[CursorChange]:
    """Return the newest changes of a consumer's cursors, newest first."""
    rows = records(
        connection,
        'select * from "changefeed.cursor_history" where feed = ?1 and consumer = ?2 '
        "and (?3 is null or shard = ?3) order by number desc limit ?4",
        (feed, consumer, None if shard is None else shard_text(shard), limit),
    )
    return [cursor_change(feed, row) for row in rows]
