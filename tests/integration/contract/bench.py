# SPDX-License-Identifier: Apache-2.0
"""A feed with its writer: what most tests of the suite begin with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_changefeed.core.feed import Event, FeedInfo, FeedKind, Seal, Shard, ShardStatus
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.sources.base import FeedSource, RangePart
from tests.clocks import after_now
from tests.integration.contract.engines import Engine, Key, Table, Writer

HOUR = timedelta(hours=1)
#: A time long past, for hints.
PAST = datetime(2013, 1, 1, tzinfo=timezone.utc)
#: A text with half a surrogate pair, as a file's name that is not UTF-8 has, and NUL; and what is kept of it.
ODD, KEPT = "caf\udce9\x00.txt", "caf\\udce9\\x00.txt"
#: A source that gives up soon: somebody is known to hold the lock, so waiting longer would show nothing.
IMPATIENT = 0.2


@dataclass
class Bench:
    """
    A feed, its source and its writers.

    :param number: of the last key that was used.
    """

    engine: Engine
    source: FeedSource
    table: Table
    number: int = 0
    given: dict[Key, Ulid] = field(default_factory=dict)

    @property
    def feed(self) -> str:
        """The feed's name."""
        return self.table.name

    @property
    def is_serialized(self) -> bool:
        """Whether the writers are serialized."""
        return self.table.kind is FeedKind.SERIALIZED

    def impatient(self) -> FeedSource:
        """Return a source over the same database that waits for locks only briefly."""
        return self.engine.source(lock_timeout=IMPATIENT)

    @contextmanager
    def transaction(self, lock_timeout: float = 20.0) -> Iterator[Writer]:
        """Open a writer's transaction for the block to end; what is still open then rolls back."""
        with closing(self.engine.writer(self.table, lock_timeout)) as writer:
            writer.begin()
            yield writer

    def insert(
        self, writer: Writer, count: int = 1, *, shard: Shard = 0, hint: datetime | None = None, **row: Any
    ) -> list[Key]:
        """Insert events with new keys into an open transaction; return the keys in order."""
        keys = []
        for _ in range(count):
            self.number += 1
            key = self.table.key(self.number)
            ulid = writer.insert(shard, hint, key, row)
            if ulid is not None:
                self.given[key] = ulid
            keys.append(key)
        return keys

    def write(
        self, count: int = 1, *, shard: Shard = 0, hint: datetime | None = None, **row: Any
    ) -> list[Key]:
        """Commit events in one transaction; return the keys in order."""
        with self.transaction() as writer:
            keys = self.insert(writer, count, shard=shard, hint=hint, **row)
            writer.commit()
        return keys

    def write_rows(self, count: int) -> list[Key]:
        """Commit rows that the feed is not told of."""
        keys = [self.table.key(self.number + step + 1) for step in range(count)]
        self.number += count
        with self.transaction() as writer:
            for key in keys:
                writer.insert_row(key, {})
            writer.commit()
        return keys

    def events(self, shard: Shard = 0, after: Ulid = Ulid.MIN, page_size: int = 1000) -> list[Event]:
        """Read a shard to its head, page by page, ordering what waits."""
        found: list[Event] = []
        while page := self.source.read_feed(self.feed, shard, after, page_size):
            found += page
            after = page.events[-1].ulid
        return found

    def keys(self, shard: Shard = 0, after: Ulid = Ulid.MIN, page_size: int = 1000) -> list[Key]:
        """Read the keys of a shard to its head."""
        return [event.key for event in self.events(shard, after, page_size)]

    def fed(self, shard: Shard = 0, upto: Ulid = Ulid.MAX) -> list[str]:
        """Return the ULIDs in the feed up to a place, as text, without ordering anything."""
        batches = self.source.stream(self.feed, shard, UlidRange(Ulid.MIN, upto))
        return [ulid for batch in batches for ulid in batch.column("changefeed_ulid").to_pylist()]

    def seal(self, until: datetime | None = None) -> dict[Shard, Seal]:
        """Seal until a time, or the present."""
        return self.source.seal(self.feed, until or self.source.now())

    def split(
        self, range_: UlidRange, parts: int, *, shard: Shard = 0, rows: int | None = None
    ) -> list[RangePart]:
        """Split a range."""
        with self.source.open(self.feed) as found:
            return found.split(shard, range_, parts, rows=rows)

    def after_now(self) -> datetime:
        """Wait until what was written lies below the present, and return that."""
        return after_now(self.source)

    def status(self, shard: Shard = 0) -> ShardStatus:
        """Return a shard's state."""
        return {status.shard: status for status in self.source.shards(self.feed)}[shard]


def set_up(engine: Engine, table: Table, **options: Any) -> Bench:
    """Create a table and its feed."""
    engine.create_table(table)
    source = engine.source()
    info = source.set_up_feed(table.name, kind=table.kind, **options)
    check_info(info, table)
    return Bench(engine, source, table)


def check_info(info: FeedInfo, table: Table) -> None:
    """Check that a feed describes its table."""
    assert info.name == table.name
    assert info.kind is table.kind
    assert [column.name for column in info.key_columns] == [name for name, _ in table.keys]
    ours = ["Shard", "ULID"] if table.kind is FeedKind.SERIALIZED else []
    assert [column.name for column in info.columns] == [
        *ours,
        *(name for name, _ in (*table.keys, *table.columns)),
    ]


def another(bench: Bench, name: str) -> Bench:
    """Set up a second feed in the same database."""
    return set_up(bench.engine, replace(bench.table, name=name))
