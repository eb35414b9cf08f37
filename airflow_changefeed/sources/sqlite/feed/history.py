# SPDX-License-Identifier: Apache-2.0
"""Inserting past events directly into a feed, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from airflow_changefeed.core.feed import Shard, StaleMark, counted, shard_text
from airflow_changefeed.core.ulid import Ulid, random_80_bits
from airflow_changefeed.core.values import format_time, from_milliseconds, to_milliseconds
from airflow_changefeed.exceptions import HistoryError
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, load_feed
from airflow_changefeed.sources.sqlite.feed.reader import STALE, shard_bounds

#: What binding a value raises; a full disk or a lock is none of its.
_UNSTORABLE = (
    OverflowError,
    UnicodeEncodeError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
    sqlite3.DataError,
)


class SqliteHistory:
    """The part of the source that inserts history."""

    database: SqliteDatabase

    def insert_history(
        self, feed: str, shard: Shard, events: Sequence[tuple[datetime, tuple[Any, ...]]], *, reason: str
    ) -> StaleMark:
        timed = [(to_milliseconds(time), tuple(key)) for time, key in events]
        with self.database.connect() as connection, self.database.write(connection):
            tables = load_feed(connection, feed)
            problems = _problems(tables, shard, timed)
            if problems:
                raise HistoryError(
                    f"feed {feed!r} shard {shard_text(shard)} cannot take this history: "
                    f"{'; '.join(problems)}",
                    feed=feed,
                    shard=shard,
                    problems=problems,
                )
            given = _insert(tables, shard, timed)
            range_ = {"after_ulid": min(given).previous(), "upto_ulid": max(given)}
            when = {"at": self.database.now(), "reason": reason}
            return STALE.add(connection, {"feed": feed, "shard": shard, **range_, **when})


def _insert(tables: FeedTables, shard: Shard, timed: list[tuple[int, tuple[Any, ...]]]) -> list[Ulid]:
    value = tables.to_sql(shard)
    keys = ", ".join(tables.keys)
    marks = ", ".join("?" * (2 + len(tables.keys)))
    given = []
    for ms, key in timed:
        ulid = _after_those_of(tables, value, ms)
        tables.execute(
            f"insert into {tables.feed} (shard_id, ulid, {keys}) values ({marks})", (value, ulid.bytes, *key)
        )
        given.append(ulid)
    # A shard first used by history must get a state row, with its high-water time at the feed's floor (R7).
    tables.execute(
        f"insert into {tables.state} (shard_id, time_ms, ulid) values (?, ?, zeroblob(16)) "
        "on conflict do nothing",
        (value, tables.floor_ms),
    )
    return given


def _after_those_of(tables: FeedTables, value: Any, ms: int) -> Ulid:
    """Return a ULID of a time, above all that the feed has of that time."""
    low, high = Ulid.floor_milliseconds(ms), Ulid.floor_milliseconds(ms + 1)
    (last,) = tables.execute(
        f"select max(ulid) from {tables.feed} where shard_id = ? and ulid >= ? and ulid < ?",
        (value, low.bytes, high.bytes),
    ).fetchone()
    return Ulid.of_bytes(last).next() if last is not None else Ulid.of_int(int(low) | random_80_bits())


def _problems(tables: FeedTables, shard: Shard, timed: list[tuple[int, tuple[Any, ...]]]) -> list[str]:
    """Return every problem of the history, before anything is written."""
    if tables.is_serialized:
        return [
            "its writers keep the ULID in their own table. Insert the rows there, with ULIDs of their time"
        ]
    if tables.capture is not None:
        return ["it is a capture, whose events come only from its triggers"]
    if not timed:
        return ["there are no events"]
    tables.to_sql(shard)
    purged, _ = shard_bounds(tables, shard)
    problems = []
    late = [ms for ms, _ in timed if ms >= tables.floor_ms]
    if late:
        sealed = format_time(from_milliseconds(tables.floor_ms)) if tables.floor_ms else "never"
        problems.append(
            f"{format_time(from_milliseconds(max(late)))} is not before the seal ({sealed}), so readers "
            "at the head would miss the row; insert it into the outbox, or seal first"
        )
    # Nothing was purged up to the lowest of all ULIDs, which is that of 1970 as well.
    if purged > Ulid.MIN and any(Ulid.floor_milliseconds(ms) <= purged for ms, _ in timed):
        problems.append(f"events up to {purged} were purged")
    problems += _key_problems(tables, [key for _, key in timed])
    return problems


def _key_problems(tables: FeedTables, keys: list[tuple[Any, ...]]) -> list[str]:
    if any(len(key) != len(tables.keys) for key in keys):
        return [f"each key needs {counted(len(tables.keys), 'value')} ({', '.join(tables.keys)})"]
    names = ", ".join(tables.keys)
    marks = ", ".join("?" * len(tables.keys))
    tables.execute(f"create temp table history as select {names} from {tables.table} where false")
    try:
        try:
            tables.executemany(f"insert into temp.history values ({marks})", keys)
        except _UNSTORABLE as error:
            return [f"a key holds a value that SQLite cannot store ({error})"]
        same = " and ".join(f"h.{key} = t.{key}" for key in tables.keys)
        problems = []
        # Compared as they are stored: the column's type may make one value of '1' and 1.
        (different,) = tables.execute("select count(*) from (select distinct * from temp.history)").fetchone()
        if different < len(keys):
            problems.append("a key occurs twice")
        for found, place in ((tables.feed, "the feed"), (tables.outbox, "the outbox")):
            (rows,) = tables.execute(
                f"select count(*) from temp.history h join {found} t on {same}"
            ).fetchone()
            if rows:
                problems.append(f"{rows} of the keys are already in {place}")
        (there,) = tables.execute(
            f"select count(*) from temp.history h join {tables.table} t on {same}"
        ).fetchone()
        if there < len(keys):
            problems.append(
                f"{len(keys) - there} of the keys have no row in {tables.info.name!r}; insert the rows first"
            )
        return problems
    finally:
        # A full disk has rolled back.
        tables.execute("drop table if exists temp.history")
