# SPDX-License-Identifier: Apache-2.0
"""A feed of made-up orders, one month of them, in one shard: what the benchmarks export, and in SQLite."""

from __future__ import annotations

import random
import sqlite3
import time
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow_changefeed.core.values import to_milliseconds
from airflow_changefeed.core.window import Window
from airflow_changefeed.sources.sqlite import SqliteFeedSource

FEED = "shop.Order"
SHARD = 0
START = datetime(2013, 6, 1, tzinfo=timezone.utc)
HOURS = 720
COLUMNS = {
    "id": "integer",
    "customer": "integer",
    "product": "integer",
    "quantity": "integer",
    "price": "real",
    "currency": "text",
    "status": "text",
    "placed_at": "text",
    "country": "text",
    "note": "text",
}
BATCH_ROWS = 10_000
KINDS = 100_000


def month(hours: int = HOURS) -> Window:
    """Return the window of the whole month, or of another number of hours."""
    return Window(START, START + timedelta(hours=hours))


def load(path: Path, rows: int, hours: int = HOURS) -> float:
    """
    Make the table and its feed, and write all rows in transactions of 10,000: event and outbox.

    :param hours: over which they are spread.
    :return: seconds that the writing took, without the making of the rows.
    """
    _create(path)
    source, made, seconds = SqliteFeedSource(str(path)), kinds(), 0.0
    first, span = to_milliseconds(START), hours * 3_600_000
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        marks = ", ".join("?" * len(COLUMNS))
        for begin in range(0, rows, BATCH_ROWS):
            numbers = range(begin, min(begin + BATCH_ROWS, rows))
            events = [(number, *made[number % KINDS]) for number in numbers]
            places = [(SHARD, first + number * span // rows, number) for number in numbers]
            started = time.perf_counter()
            connection.execute("begin immediate")
            connection.executemany(f'insert into "{FEED}" values ({marks})', events)
            connection.executemany(
                f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (?, ?, ?)', places
            )
            connection.execute("commit")
            seconds += time.perf_counter() - started
    source.drain(FEED)
    source.close()
    return seconds


def _create(path: Path) -> None:
    declared = ", ".join(f'"{name}" {kind}' for name, kind in COLUMNS.items())
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'create table "{FEED}" ({declared}, primary key ("id"))')
        connection.commit()
    SqliteFeedSource(str(path)).set_up_feed(FEED)


def kinds() -> list[tuple[Any, ...]]:
    """Return what rows hold besides their id; they are many enough that files do not shrink to nothing."""
    generator = random.Random(2013)
    return [
        (
            generator.randrange(1_000_000),
            generator.randrange(50_000),
            generator.randrange(1, 20),
            round(generator.uniform(1, 500), 2),
            generator.choice(("EUR", "USD", "GBP", "NOK")),
            generator.choice(("placed", "paid", "shipped", "returned")),
            f"2013-06-{generator.randrange(1, 31):02d}T{generator.randrange(24):02d}:00:00Z",
            generator.choice(("DE", "NO", "SE", "US", "GB", "FR", "NL")),
            "".join(generator.choices("abcdefghijklmnopqrstuvwxyz ", k=24)),
        )
        for _ in range(KINDS)
    ]
