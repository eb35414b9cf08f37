# SPDX-License-Identifier: Apache-2.0
"""
Serialized writers in SQLite: take ULIDs before the write, in the writer's own transaction.

Outbox writers need nothing from here: they insert into ``"changefeed.outbox:T"`` beside the event::

    connection.execute("begin immediate")
    connection.execute('insert into "myservice.MyEvent" values (?, ?, ?)', (1000, 1, 38))
    connection.execute(
        'insert into "changefeed.outbox:myservice.MyEvent" (shard_id, AggregateID, Version) '
        "values (0, 1000, 1)"
    )
    connection.execute("commit")
"""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from datetime import datetime

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import to_milliseconds
from airflow_changefeed.exceptions import FeedSetupError, InvalidArgumentError, LockTimeoutError
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, load_again, load_feed
from airflow_changefeed.sources.sqlite.feed.reader import load_high_water, store_high_water

#: ULIDs that one lock reserves, as mssql-changefeed's ``lock:T`` does.
RESERVED = 10**11


@dataclass(frozen=True)
class UlidBlock:
    """
    The ULIDs that a lock reserved for the transaction that took it; all have the same time.

    :param first: the lowest.
    """

    tables: FeedTables
    shard: Shard
    first: Ulid

    def ulid(self, index: int) -> Ulid:
        """
        Return a ULID of the block.

        :param index: 0 to 10**11 - 1; each at most once.
        :raises InvalidArgumentError: the index is out of range, or the transaction that took the lock is
            over.
        """
        return self.ulids(1, start=index)[0]

    def ulids(self, count: int, start: int = 0) -> list[Ulid]:
        """
        Return consecutive ULIDs of the block.

        :param count: how many, from the index ``start``.
        :raises InvalidArgumentError: beyond the block, or the transaction that took the lock is over.
        """
        if not (start >= 0 and count >= 0 and start + count <= RESERVED):
            raise InvalidArgumentError(f"a lock reserves {RESERVED} ULIDs: index {start} + {count} is beyond")
        self._check_held()
        first = int(self.first) + start
        return [Ulid.of_int(first + number) for number in range(count)]

    def _check_held(self) -> None:
        # A rollback, also one to a savepoint before the lock, gives the block back (ADR 0005, R13);
        # and a seal in between, if the transaction is another one, has raised the high-water time above it.
        last = (int(self.first) + RESERVED - 1).to_bytes(16, "big")
        held = (
            self.tables.connection.in_transaction
            and self.tables.execute(
                f"select 1 from {self.tables.state} where shard_id = ? and ulid = ? and time_ms = ?",
                (self.tables.to_sql(self.shard), last, Ulid.of_bytes(last).ms),
            ).fetchone()
        )
        if not held:
            raise InvalidArgumentError(
                f"feed {self.tables.info.name!r} shard {shard_text(self.shard)}: the transaction that "
                "locked it has ended, or has locked the shard again; lock the shard in the transaction "
                "that writes",
                feed=self.tables.info.name,
                shard=self.shard,
            )


def lock(
    connection: sqlite3.Connection, feed: str, shard: Shard = 0, time_hint: datetime | None = None
) -> UlidBlock:
    """
    Lock a shard of a feed of serialized writers until the end of the transaction, and reserve ULIDs.

    :param connection: the writer's own, inside a transaction (``begin immediate``).
    :param time_hint: time the ULIDs should have; None takes the present. One in the past takes the shard's
        clock.
    :raises InvalidArgumentError: no transaction is open.
    :raises FeedSetupError: the feed is one of an outbox.
    :raises LockTimeoutError: another writer was busy for longer than the connection's timeout.
    """
    if not connection.in_transaction:
        raise InvalidArgumentError(
            f"feed {feed!r}: lock a shard inside a transaction begun with 'begin immediate'; otherwise the "
            "lock would end before the write"
        )
    tables = load_feed(connection, feed)
    if not tables.is_serialized:
        raise FeedSetupError(
            f"feed {feed!r} has an outbox; insert into {tables.outbox} instead of locking a shard", feed=feed
        )
    now_ms = time.time_ns() // 1_000_000
    hint_ms = to_milliseconds(time_hint) if time_hint is not None else now_ms
    try:
        return _reserve(tables, shard, hint_ms, now_ms)
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise LockTimeoutError(
                f"feed {feed!r}: another writer was busy ({error}); retry", feed=feed
            ) from error
        raise


def _reserve(tables: FeedTables, shard: Shard, hint_ms: int, now_ms: int) -> UlidBlock:
    value = tables.to_sql(shard)
    # A write first: it takes the lock, so that what is read next is the newest.
    tables.execute(
        f"insert into {tables.state} (shard_id, time_ms, ulid) values (?, 0, zeroblob(16)) "
        "on conflict (shard_id) do update set time_ms = time_ms",
        (value,),
    )
    # Read again under the lock: a seal may have raised the floor since (ADR 0005, R7).
    clock = load_high_water(load_again(tables), value, now_ms)
    first = clock.give(hint_ms, RESERVED)
    store_high_water(tables, value, clock)
    return UlidBlock(tables, shard, Ulid.of_int(first))
