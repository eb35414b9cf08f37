# SPDX-License-Identifier: Apache-2.0
"""
The table of a capture's events, and recording the rows that captured tables already have, while others write.

A reset begins it. Then short transactions record some rows each, in the order of the primary key, and an
event says when all are recorded. A row that changes meanwhile has its events before or behind that of its
row, so in the end the last event of each key is right. What has begun is a snapshot like any other, into the
feed.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Sequence
from datetime import timedelta

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.core.feed import Column, counted
from airflow_changefeed.core.values import from_milliseconds
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.arrow import DDL, READY, RESET, SNAPSHOT
from airflow_changefeed.sources.base_capture import (
    INTO_FEED,
    PROTECTED,
    KeyRange,
    SnapshotClaim,
    held_snapshot,
)
from airflow_changefeed.sources.shared import as_row
from airflow_changefeed.sources.sqlite.capture.drain import event_numbers, next_number, number_range
from airflow_changefeed.sources.sqlite.capture.plan import declared, shard_sql
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture, StoredTable
from airflow_changefeed.sources.sqlite.capture.snapshots import (
    CLAIM,
    CLAIMS,
    MARKS,
    claim_key,
    forget,
    move_to,
    renew,
)
from airflow_changefeed.sources.sqlite.capture.table import key_behind, key_names, range_values, within
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.feed.names import (
    FeedTables,
    Storage,
    has_text_affinity,
    load_feed,
    quote,
    shard_check,
    storage_of,
)
from airflow_changefeed.sql import fill, load_sql

#: Rows of a transaction: as many as take so long, so that no writer waits longer.
_SECONDS = 0.05
_FIRST_ROWS, _MOST_ROWS = 100, 5_000
#: Mark of a table whose rows are all recorded.
_END = "end"


def make_events(connection: sqlite3.Connection, capture: StoredCapture) -> None:
    """Create the table of a capture's events."""
    shard_type = "text" if capture.spec.shard_key_type == "uniqueidentifier" else "integer"
    columns = "".join(f",\n    {definition}" for definition in image_columns(capture.fields))
    tokens = {"events": quote(capture.name), "shard_type": shard_type, "columns": columns}
    connection.execute(fill(load_sql("sqlite/capture/event.table.sql"), tokens))


def image_columns(fields: Sequence[Column]) -> list[str]:
    """
    Return the definitions of the columns for the new and old values of fields.

    One declared ``any`` gets no type: only a strict table would keep its values unchanged. Nor does one that
    we treat as text, such as a date: a corrected '2024' would become a number again.
    """

    def type_of(one: Column) -> str:
        is_kept = storage_of(one) is Storage.TEXT and not has_text_affinity(one)
        return "" if is_kept or one.type.lower() == "any" else declared(one)

    return [
        f"{quote(f'{image}_{one.name}')} {type_of(one)}".rstrip()
        for image in ("new", "old")
        for one in fields
    ]


def record_reset(tables: FeedTables, number: int, at_ms: int) -> None:
    """
    Record that the rows of a table follow: a reset in each shard that has events, and where the first row is.

    So there is one, wherever the rows are. A shard that gets its first event later has nothing to discard.

    :param number: of the table in the capture.
    """
    table, shard = tables.captured.tables[number], _shard(tables, number)
    shards = _shards_with_events(tables, shard)
    if _is_computed(shard):
        shards += f" union select * from (select {shard} from {quote(table.name)} limit 1)"
    _record_everywhere(tables, number, RESET, shards, at_ms)


def record_ready(tables: FeedTables, number: int, at_ms: int) -> None:
    """Record, in each shard that has events, that all rows of a table have followed its reset."""
    shards = _shards_with_events(tables, _shard(tables, number))
    _record_everywhere(tables, number, READY, shards, at_ms)


def record_range(tables: FeedTables, number: int, range_: KeyRange, at_ms: int) -> None:
    """Record the rows of a table whose key is in a range, in the current transaction."""
    table, shard = tables.captured.tables[number], _shard(tables, number)
    before = event_numbers(tables.connection).get(tables.info.name, 0)
    columns = table.columns_for(Operation.INSERT, Operation.UPDATE)
    fields = "".join(f", {quote('new_' + table.fields[name])}" for name in columns)
    values = "".join(f", {quote(name)}" for name in columns)
    order = f" order by {key_names(table)}" if table.key_columns else ""
    tables.execute(
        f"insert into {tables.table} "
        f"(changefeed_table, changefeed_shard, changefeed_op, changefeed_at{fields}) "
        f"select ?, {shard}, '{SNAPSHOT}', ?{values} from {quote(table.name)}{within(table, range_)}{order}",
        (number, at_ms, *range_values(range_)),
    )
    _queue(tables, before)


def has_rows(connection: sqlite3.Connection, table: str) -> bool:
    """Whether a table has any row."""
    return connection.execute(f"select 1 from {quote(table)} limit 1").fetchone() is not None


def _shard(tables: FeedTables, number: int) -> str:
    return shard_sql(tables.captured.spec.tables[number].shard)


def _record_everywhere(
    tables: FeedTables, number: int, kind: str, shards: str, at_ms: int, ddl: str | None = None
) -> None:
    """
    Record an event that is not about a row, in some shards.

    :param shards: SQL that gives them, as ``id``.
    """
    before = event_numbers(tables.connection).get(tables.info.name, 0)
    tables.execute(
        f"insert into {tables.table} "
        f"(changefeed_table, changefeed_shard, changefeed_op, changefeed_at, changefeed_ddl) "
        f"select ?, id, ?, ?, ? from ({shards}) order by id",
        (number, kind, at_ms, ddl),
    )
    _queue(tables, before)


def record_ddl(
    tables: FeedTables,
    before: StoredCapture,
    after: StoredCapture,
    unrecorded: Sequence[Sequence[str]],
    at_ms: int,
) -> None:
    """
    Record an event in each shard of each table whose captured columns, types or key have changed.

    :param tables: of the capture's feed.
    :param before: as it was recorded until now.
    :param unrecorded: for each table the fields whose values in rows of before no event has.
    """
    changed = [
        (number, was, now)
        for number, (was, now) in enumerate(
            zip(map(before.recorded, before.tables), after.tables, strict=True)
        )
        if _facts(was) != _facts(now)
    ]
    if not changed:
        return
    for number, was, now in changed:
        ddl = {
            "statement": None,
            "before": [{"name": one.name, "type": one.type} for one in was.captured_columns],
            "after": [{"name": one.name, "type": one.type} for one in now.captured_columns],
            "by": None,
            "unrecorded": unrecorded[number],
        }
        text = json.dumps(ddl, ensure_ascii=False, separators=(",", ":"))
        shards = _shards_with_events(tables, shard_sql(after.spec.tables[number].shard))
        _record_everywhere(tables, number, DDL, shards, at_ms, text)


def _facts(table: StoredTable) -> tuple[object, ...]:
    """Return types and fields of the captured columns, and the key."""
    own = {one.name: (one.type.casefold(), table.fields[one.name]) for one in table.captured_columns}
    return own, table.key_columns


def _queue(tables: FeedTables, before: int) -> None:
    """
    Queue recorded events for ordering, as one transaction.

    :param before: the last event that is queued already.
    """
    name = tables.info.name
    _check_shards(tables, before)
    tables.execute(
        f"insert into {tables.outbox} (order_sequence, shard_id, time_hint) "
        "select changefeed_event, changefeed_shard, changefeed_at "
        f"from {tables.table} where changefeed_event > ? order by changefeed_event",
        (before,),
    )
    last = event_numbers(tables.connection).get(name, 0)
    if last > before:
        number_range(tables.connection, name, before + 1, last, next_number(tables.connection))


def _is_computed(shard: str) -> bool:
    """Whether a shard is an expression of the key; else all rows are in one."""
    return shard.startswith("(")


def _shards_with_events(tables: FeedTables, shard: str) -> str:
    """Return SQL for the shards that may have events of a table."""
    if not _is_computed(shard):
        return f"select {shard} as id"
    return f"select shard_id as id from {tables.state} union select id from ({tables.waiting_shards})"


def _check_shards(tables: FeedTables, before: int) -> None:
    kind = tables.info.shard_key_type
    (wrong,) = tables.execute(
        f"select count(*) from {tables.table} "
        f"where changefeed_event > ? and not ({shard_check(kind, 'changefeed_shard')})",
        (before,),
    ).fetchone()
    if wrong:
        raise FeedSetupError(
            f"capture {tables.info.name!r}: the shard of {counted(wrong, 'row')} is not of type {kind}, so "
            "they cannot be recorded; correct their keys",
            feed=tables.info.name,
        )


def begin_recording(tables: FeedTables, numbers: Sequence[int], now_ms: int, by: str) -> None:
    """
    Begin to record all rows of tables, in the current transaction; what has begun of them begins again.

    :param numbers: of the tables in the capture.
    :raises SnapshotError: a snapshot of one of them runs into an output.
    """
    if tables.capture is None or not numbers:
        return
    feed, now = tables.info.name, from_milliseconds(now_ms)
    for number in numbers:
        table = tables.capture.tables[number].name
        for other in CLAIMS.find(tables.connection, {"capture": feed, "table_name": table}):
            if other.path != INTO_FEED and other.expires_at > now:
                raise held_snapshot(other)
            forget(tables.connection, claim_key(feed, table, other.token))
        expires = now + timedelta(seconds=PROTECTED)
        claim = SnapshotClaim(feed, table, secrets.token_hex(16), INTO_FEED, now, by, expires)
        CLAIMS.add(tables.connection, as_row(claim, CLAIM))
        record_reset(tables, number, now_ms)


def recordings(connection: sqlite3.Connection, feed: str) -> list[SnapshotClaim]:
    """Return the snapshots into a capture's own feed that have begun and not ended."""
    return CLAIMS.find(connection, {"capture": feed, "path": INTO_FEED})


def stop_recording(connection: sqlite3.Connection, feed: str, names: Sequence[str]) -> None:
    """Forget what has begun of tables; it stays without an end."""
    for claim in recordings(connection, feed):
        if claim.table in names:
            forget(connection, claim_key(feed, claim.table, claim.token))


def record_begun(database: SqliteDatabase, feed: str) -> None:
    """
    Go on with what has begun, until nothing is left; several may do so, and take turns.

    After each transaction, writers have as long as it took.
    """
    rows = _FIRST_ROWS
    while True:
        with database.connect() as connection:
            started = time.monotonic()
            with database.write(connection):
                if not _record_some(connection, database, feed, rows):
                    return
            took = time.monotonic() - started
        rows = max(1, min(_MOST_ROWS, 2 * rows, int(rows * _SECONDS / max(took, 0.001))))
        time.sleep(took)


def _record_some(connection: sqlite3.Connection, database: SqliteDatabase, feed: str, rows: int) -> bool:
    """Record the next rows of the first table that is not complete; return whether there was one."""
    tables, begun = load_feed(connection, feed), recordings(connection, feed)
    if tables.capture is None or not begun:
        return False
    mine = claim_key(feed, begun[0].table, begun[0].token)
    number = [table.name for table in tables.capture.tables].index(begun[0].table)
    table, now_ms = tables.capture.tables[number], database.now_ms()
    renew(connection, mine, from_milliseconds(now_ms) + timedelta(seconds=PROTECTED))
    after = next(iter(MARKS.find(connection, mine)), None)
    if after == _END:
        record_ready(tables, number, now_ms)
        forget(connection, mine)
        return True
    upto = key_behind(connection, feed, table, after, rows) if table.key_columns else None
    record_range(tables, number, KeyRange(after, upto), now_ms)
    # The end comes in a transaction of its own, so that in each shard it is behind the rows of every other.
    move_to(connection, mine, _END if upto is None else upto)
    return True
