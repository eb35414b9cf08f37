# SPDX-License-Identifier: Apache-2.0
"""
Transactions of writers to captured tables, which SQLite does not number, and the order of their events.

As in :mod:`~airflow_changefeed.sources.sqlite.feed.control`, and in addition: the events of a transaction are
ordered in one transaction and get one time, the highest of their hints, so that no window or reader sees part
of it.

There is a single writer and events are numbered when recorded, so a transaction's events are all those
between the last number before it and the last one at its commit. This is stored once, at the end, so events
of a transaction without it are never attributed to another.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from airflow_changefeed.core.ulid import HighWater
from airflow_changefeed.sources.sqlite.capture.registry import REGISTRY
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, quote
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


def event_numbers(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the number of the last event of each capture that has any."""
    installed = connection.execute("select 1 from sqlite_master where name = ?", (REGISTRY,)).fetchone()
    if not installed:
        return {}
    return dict(
        connection.execute(
            f'select name, seq from sqlite_sequence where name in (select name from "{REGISTRY}")'
        ).fetchall()
    )


def number_events(
    connection: sqlite3.Connection, before: Mapping[str, int], variables: Mapping[str, str]
) -> int | None:
    """
    Store which events the current transaction recorded, before it commits.

    :param before: what :func:`event_numbers` gave when it began.
    :param variables: the session's.
    :return: the transaction's number; None where it recorded nothing.
    """
    now = event_numbers(connection)
    changed = [name for name, last in now.items() if last > before.get(name, 0)]
    if not changed:
        return None
    tid = next_number(connection)
    for name in changed:
        number_range(connection, name, before.get(name, 0) + 1, now[name], tid)
        if variables:
            _store_context(connection, name, tid, now[name], variables)
    return tid


def next_number(connection: sqlite3.Connection) -> int:
    """Draw the number of a transaction; none is given twice."""
    row = connection.execute(
        'insert into "changefeed.transaction_number" (only, last) values (0, 1) '
        "on conflict (only) do update set last = last + 1 returning last"
    ).fetchone()
    return int(row[0])


def number_range(connection: sqlite3.Connection, capture: str, first: int, last: int, tid: int) -> None:
    """Write down that the events of a range, inclusive, are a transaction's."""
    # The clock may have been set back meanwhile; a transaction that was rolled back in part has gaps.
    connection.execute(
        'insert into "changefeed.transaction" (capture, last_event, first_event, tid, time_ms) '
        f"select ?1, ?3, ?2, ?4, coalesce(max(changefeed_at), 0) from {quote(capture)} "
        "where changefeed_event in (?2, ?3)",
        (capture, first, last, tid),
    )


def _store_context(
    connection: sqlite3.Connection, capture: str, tid: int, last: int, variables: Mapping[str, str]
) -> None:
    """Write down what a capture has chosen of a session's variables."""
    # Without the rest of the spec, which each transaction would read in vain.
    keys, trace_key = connection.execute(
        "select json_extract(spec, '$.session_keys'), json_extract(spec, '$.trace_key') "
        f'from "{REGISTRY}" where name = ?',
        (capture,),
    ).fetchone()
    chosen = {key: variables[key] for key in json.loads(keys) if key in variables}
    trace = variables.get(trace_key) if trace_key else None
    if chosen or trace is not None:
        connection.execute(
            'insert into "changefeed.context" (capture, tid, last_event, session, trace) '
            "values (?, ?, ?, ?, ?)",
            (capture, tid, last, json.dumps(chosen, ensure_ascii=False) if chosen else None, trace),
        )
