# SPDX-License-Identifier: Apache-2.0
"""
Polls of feeds in SQLite: one connection, and one select per feed, including whether it exists.

A select names its tables, and serialized writers have user-defined columns. So a feed is assumed to have an
outbox until proven otherwise; later polls of this process reuse the result, and each checks that it still
holds.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from airflow_changefeed.core.feed import FeedInfo, FeedKind, Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.polls import FeedPoll
from airflow_changefeed.sources.rows import as_ulid
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.names import KNOWN, FeedTables, load_feed

#: Feeds that do not match the first assumption, by file and name, with their tables' definitions.
_LEARNED: dict[tuple[str, str], tuple[FeedTables, str]] = {}

#: A row of a poll: the event table's definition, then shard, head, whether rows wait, consumer and cursor.
Row = tuple[str | None, Any, bytes | None, int, str | None, bytes | None]


def poll(database: SqliteDatabase, wanted: Mapping[str, Sequence[str]]) -> dict[str, FeedPoll | Exception]:
    """
    Poll feeds, each for its consumers.

    :return: for each feed what was found; or FeedNotFoundError, FeedSetupError where its event table was
        dropped or renamed, or another error.
    """
    found: dict[str, FeedPoll | Exception] = {}
    at = database.now()
    with database.connect() as connection:
        for feed, consumers in wanted.items():
            try:
                tables, rows = _query(connection, database, feed, consumers)
                found[feed] = FeedPoll(at, *_read(tables, rows))
            except Exception as error:
                if isinstance(error, sqlite3.Error) and "no such" not in str(error):
                    raise  # of the file, not of the feed
                found[feed] = error
    return found


def _query(
    connection: sqlite3.Connection, database: SqliteDatabase, feed: str, consumers: Sequence[str]
) -> tuple[FeedTables, list[Row]]:
    tables, definition = _LEARNED.get((database.path, feed), (_with_outbox(connection, feed), None))
    values = {
        "feed": tables.info.name,
        "kind": tables.info.kind.value,
        "consumers": json.dumps(list(consumers)),
    }
    try:
        rows: list[Row] = connection.execute(poll_sql(tables), values).fetchall()
    except sqlite3.OperationalError as error:
        if "no such" not in str(error):
            raise
        rows = []  # the feed does not have these tables
    if not rows or rows[0][0] is None or definition not in (None, rows[0][0]):
        with database.snapshot(connection):
            tables = load_feed(connection, feed)
            values |= {"feed": tables.info.name, "kind": tables.info.kind.value}
            rows = connection.execute(poll_sql(tables), values).fetchall()
        if tables.is_serialized or tables.capture is not None:
            _LEARNED[database.path, feed] = (tables, rows[0][0] or "")
        else:
            _LEARNED.pop((database.path, feed), None)
    elif tables.capture is None and "changefeed_event" in rows[0][0]:
        # From the next poll on, all shards of its outbox are found at once.
        _LEARNED[database.path, feed] = (load_feed(connection, feed), rows[0][0])
    return tables, rows


def _read(
    tables: FeedTables, rows: Sequence[Row]
) -> tuple[list[tuple[Shard, Ulid | None, bool]], dict[str, dict[Shard, Ulid]]]:
    """Return the shards, and the cursors of each consumer; a shard has a row for each of its cursors."""
    shards: dict[Shard, tuple[Shard, Ulid | None, bool]] = {}
    cursors: dict[str, dict[Shard, Ulid]] = {}
    for _, value, head, waits, consumer, cursor in rows:
        if value is None:
            continue
        shard = tables.from_sql(value)
        shards.setdefault(shard, (shard, as_ulid(head), bool(waits)))
        if consumer is not None and cursor is not None:
            cursors.setdefault(consumer, {})[shard] = Ulid.of_bytes(cursor)
    return list(shards.values()), cursors


def _with_outbox(connection: sqlite3.Connection, feed: str) -> FeedTables:
    """Return the tables of a feed with an outbox, with all that is known except what a poll does not need."""
    return FeedTables(connection, FeedInfo(feed, FeedKind.OUTBOX, "int", (), ()), 0)


def poll_sql(tables: FeedTables) -> str:
    """Return the select, which gives one row at least where there is such a feed, and none where not."""
    condition = tables.condition_of(f"{KNOWN}.id")
    return f"""
        with {tables.known_shards}
        select
            (select sql from sqlite_master where type = 'table' and name = :feed collate nocase),
            {KNOWN}.id,
            (select max({tables.ulid}) from {tables.feed} where {condition}),
            {KNOWN}.has_outbox,
            c.consumer,
            c.ulid
        from "changefeed.registry" as r
        left join {KNOWN}
        left join "changefeed.consumer" as c
            on c.feed = r.feed and c.consumer in (select value from json_each(:consumers))
            and c.shard = cast({KNOWN}.id as text)
        where r.feed = :feed and r.kind = :kind
        order by {KNOWN}.id
    """
