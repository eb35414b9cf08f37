# SPDX-License-Identifier: Apache-2.0
"""A SQLite file with a plain feed and a captured table, a clock that is set, and consumers of both."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from airflow_changefeed.capture.session import transaction
from airflow_changefeed.consumers.consumer import Consumer
from airflow_changefeed.consumers.settings import Pace, create_consumer
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.sources.sqlite import SqliteFeedSource

TABLE = "shop.t"
CAPTURE = "shop.t_changes"
PLAIN = "shop.Order"
#: Consumers' names; a test that needs one takes the first.
NAME = "watch"


@dataclass
class Clock:
    """
    Seconds that pass when somebody waits; what is to happen meanwhile happens then.

    :param meanwhile: called at each wait, with its number from 0.
    :param database: whose clock goes on as well; None leaves it alone.
    """

    seconds: float = 1000.0
    waits: int = 0
    meanwhile: Callable[[int], object] = lambda number: None
    source: SqliteFeedSource | None = None

    def __call__(self) -> float:
        """Return the seconds."""
        return self.seconds

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.advance(seconds)
        self.waits += 1
        self.meanwhile(self.waits - 1)

    def advance(self, seconds: float) -> None:
        """Let time pass, also for the database."""
        self.seconds += seconds
        if self.source is not None:
            database = self.source.database
            later = database.now_ms() + int(seconds * 1000)
            setattr(database, "now_ms", lambda: later)  # noqa: B010 - the machine's clock stands there


@dataclass
class Shop:
    """
    The file, a writer's own connection, and the source.

    :param clock: of all consumers that :meth:`consumer` makes.
    """

    path: Path
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.connection = sqlite3.connect(self.path, isolation_level=None, timeout=5)
        self.connection.execute(f'create table "{TABLE}" (id integer primary key, data text)')
        self.connection.execute(f'create table "{PLAIN}" (id integer primary key, data text, price real)')
        self.connection.execute("create table audit (id text, said text unique)")
        self.source = SqliteFeedSource(str(self.path), lock_timeout=5)
        self.source.set_up_feed(PLAIN)
        self.source.enable_capture(
            CaptureSpec((TableCapture(TABLE, shard="id % 4"),), with_sequence=True, session_keys=("user",))
        )
        self.clock.source = self.source

    def create(self, name: str = NAME, feed: str = CAPTURE, start: str = "earliest", **settings: Any) -> None:
        """Make a consumer."""
        create_consumer(self.source, ConsumerSpec(name, feed, **settings), start, by="test")

    def consumer(self, name: str = NAME, feed: str = CAPTURE, **options: Any) -> Consumer:
        """Return a consumer, which waits by the clock."""
        return Consumer(self.source, name, feed, **{"register_timeout": 0.0, "pace": self.pace(), **options})

    def pace(self, page_size: int = 1000) -> Pace:
        """Return how consumers wait here."""
        return Pace(page_size=page_size, wait=self.clock.wait, clock=self.clock)

    def insert(self, *texts: str, shard: int = 0, **variables: str) -> None:
        """Commit rows of the captured table in one transaction."""
        with transaction(self.connection, session_variables=variables):
            for text in texts:
                (number,) = self.connection.execute(
                    f'select coalesce(max(id), 0) + 4 from "{TABLE}" where id % 4 = ?', (shard,)
                ).fetchone()
                number += (shard - number) % 4
                self.connection.execute(f'insert into "{TABLE}" values (?, ?)', (number, text))

    def order(self, *texts: str) -> None:
        """Commit events of the plain feed."""
        self.connection.execute("begin immediate")
        for text in texts:
            (number,) = self.connection.execute(
                f'insert into "{PLAIN}" (data, price) values (?, 1.5) returning id', (text,)
            ).fetchone()
            self.connection.execute(
                f'insert into "changefeed.outbox:{PLAIN}" (shard_id, id) values (0, ?)', (number,)
            )
        self.connection.execute("commit")

    def said(self) -> list[str]:
        """Return what handlers have written."""
        return [text for (text,) in self.connection.execute("select said from audit order by rowid")]

    def after_now(self) -> datetime:
        """Wait for the next millisecond of the database's clock, and return it."""
        written = self.source.now()
        while (now := self.source.now()) <= written:
            pass
        return now

    def later(self, **time: float) -> None:
        """Let time pass for the database alone."""
        self.clock.advance(timedelta(**time).total_seconds())
