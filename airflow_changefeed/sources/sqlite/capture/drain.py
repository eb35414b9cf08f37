# SPDX-License-Identifier: Apache-2.0
"""
Ordering the events of a capture, in SQLite.

As in :mod:`~airflow_changefeed.sources.sqlite.feed.control`, and in addition: the events of a transaction are
ordered in one transaction and get one time, the highest of their hints, so that no window or reader sees part
of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from airflow_changefeed.core.ulid import HighWater
from airflow_changefeed.sources.sqlite.feed.names import FeedTables
from airflow_changefeed.sources.sqlite.feed.reader import load_high_water

_LAST = (1 << 63) - 1


def move_captured(tables: FeedTables, now_ms: int, limit: int) -> Counter[Any]:
    """
    Move events of all shards from outbox to feed, in order, under the write lock; holds no rows in memory.

    :param now_ms: by the database's clock.
    :param limit: minimum events, if there are as many; a transaction is never split, however long.
    :return: number of events, by shard as stored in SQLite.
    """
    upto = _bound(tables, limit)
    clocks: dict[Any, HighWater] = {}
    moved: Counter[Any] = Counter()
    # The number of the last event of each shard.
    sequences: Counter[Any] = Counter()

    def rows() -> Iterator[tuple[Any, ...]]:
        """Yield rows of the feed: events in order, merged with the transactions."""
        events = tables.execute(
            f"select order_sequence, shard_id, time_hint from {tables.outbox} "
            "where order_sequence <= ? order by order_sequence",
            (upto,),
        )
        transactions = tables.execute(
            'select first_event, last_event, tid, time_ms from "changefeed.transaction" '
            "where capture = ? order by last_event",
            (tables.info.name,),
        )
        first, last, tid, time_ms = 0, 0, None, 0
        for event, shard, hint in events:
            while last < event:
                first, last, tid, time_ms = transactions.fetchone() or (_LAST, _LAST, None, 0)
            is_known = first <= event
            if shard not in clocks:
                clocks[shard] = load_high_water(tables, shard, now_ms)
                sequence = f"select sequence from {tables.state} where shard_id = ?"
                (sequences[shard],) = tables.execute(sequence, (shard,)).fetchone() or (0,)
            ulid = clocks[shard].give(max(hint, time_ms) if is_known else hint)
            moved[shard] += 1
            sequences[shard] += 1
            yield shard, ulid.to_bytes(16, "big"), event, sequences[shard], tid if is_known else None

    tables.executemany(
        f"insert into {tables.feed} (shard_id, ulid, changefeed_event, changefeed_sequence, changefeed_tid) "
        "values (?, ?, ?, ?, ?)",
        rows(),
    )
    tables.execute(f"delete from {tables.outbox} where order_sequence <= ?", (upto,))
    tables.executemany(
        f"insert into {tables.state} (shard_id, time_ms, ulid, sequence) values (?1, ?2, ?3, ?4) "
        "on conflict (shard_id) do update "
        "set time_ms = excluded.time_ms, ulid = excluded.ulid, sequence = excluded.sequence",
        [
            (shard, clock.ms, clock.last.to_bytes(16, "big"), sequences[shard])
            for shard, clock in clocks.items()
        ],
    )
    tables.execute(
        'delete from "changefeed.transaction" where capture = ? and last_event <= ?', (tables.info.name, upto)
    )
    return moved


def _bound(tables: FeedTables, limit: int) -> int:
    """Return up to which event to go."""
    page = tables.execute(
        f"select order_sequence from {tables.outbox} order by order_sequence limit 1 offset ?", (limit - 1,)
    ).fetchone()
    if page is None:
        return _LAST
    row = tables.execute(
        'select last_event from "changefeed.transaction" '
        "where capture = ?1 and last_event >= ?2 and first_event <= ?2",
        (tables.info.name, page[0]),
    ).fetchone()
    return int(row[0] if row else page[0])


def purge_captured(tables: FeedTables, value: Any, upto: bytes, batch: int) -> None:
    """
    Delete the events of the feed rows that the purge deletes next, in its transaction.

    :param upto: ULID, inclusive.
    :param batch: number of the first feed rows that it deletes.
    """
    tables.execute(
        f"delete from {tables.table} where changefeed_event in (select changefeed_event from {tables.feed} "
        "where shard_id = ? and ulid <= ? order by ulid limit ?)",
        (value, upto, batch),
    )
    tables.execute(
        'delete from "changefeed.context" where capture = ? and last_event < '
        f"coalesce((select min(changefeed_event) from {tables.table}), {_LAST})",
        (tables.info.name,),
    )
