# SPDX-License-Identifier: Apache-2.0
"""The history of cursors, in SQLite."""

from __future__ import annotations

import sqlite3

from airflow_changefeed.core.cursor import KEPT_CHANGES, CursorRow
from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.sources.rows import cursor_change
from airflow_changefeed.sources.sqlite.consumers.cursor_rows import key_of
from airflow_changefeed.sources.sqlite.records import Records

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
