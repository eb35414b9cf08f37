# SPDX-License-Identifier: Apache-2.0
"""What a feed holds, and a consumer of it, for the tests of commands."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources.base_consumers import CursorMove
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.unit.airflow.conftest import CONSUMER, FEED, START


def consume(
    source: SqliteFeedSource, until: datetime, *, ack: bool = False, consumer: str = CONSUMER
) -> Ulid:
    """Let a consumer stand at a time, in shard 0; return its cursor."""
    upto = Ulid.floor(until).previous()
    (row,) = source.begin_consumer(consumer, FEED, {0: Ulid.floor(START).previous()}, by="test")
    tokens = source.acquire_leases(consumer, FEED, [0], holder="a task", seconds=600, all_or_none=True).tokens
    frontier = row.frontier.complete(UlidRange(row.frontier.start, upto))
    move = CursorMove(0, frontier, row.resource_version, tokens[0], upto if ack else None)
    source.move_cursors(consumer, FEED, [move], by="a run")
    return upto


def changes(path: str) -> list[tuple[object, ...]]:
    """Read all that the feed holds."""
    with closing(sqlite3.connect(path)) as connection:
        names = [
            name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")
        ]
        return [row for name in names for row in connection.execute(f'select * from "{name}"')]
