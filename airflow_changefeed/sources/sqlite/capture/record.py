# SPDX-License-Identifier: Apache-2.0
"""The table of a capture's events, and recording the current rows of captured tables into it."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.core.feed import Column
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.captured import DDL, RESET, SNAPSHOT
from airflow_changefeed.sources.sqlite.capture.plan import declared, shard_sql
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture, StoredTable
from airflow_changefeed.sources.sqlite.capture.transaction import event_numbers, next_number, number_range
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, columns_of, quote
from airflow_changefeed.sources.sqlite.feed.types import Storage, has_text_affinity, shard_check, storage_of
from airflow_changefeed.sql import fill, load_sql

#: Of the table of events: what has changed, in an event of changed columns.
DDL_COLUMN = "changefeed_ddl"


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
    we treat as text, such as a date: a repaired '2024' would become a number again.
    """

    def type_of(one: Column) -> str:
        is_kept = storage_of(one) is Storage.TEXT and not has_text_affinity(one)
        return "" if is_kept or one.type.lower() == "any" else declared(one)

    return [
        f"{quote(f'{image}_{one.name}')} {type_of(one)}".rstrip()
        for image in ("new", "old")
        for one in fields
    ]


def record_rows(
    connection: sqlite3.Connection,
    tables: FeedTables,
    numbers: Sequence[int],
    at_ms: int,
    *,
    with_reset: bool,
) -> None:
    """
    Record all rows of tables, in the current transaction.

    :param numbers: of the tables in the capture.
    :param with_reset: whether to discard earlier events first, with a reset in each shard that has events
        or rows.
    """
    capture = tables.capture
    if capture is None:
        raise FeedSetupError(f"feed {tables.info.name!r} is not a capture", feed=tables.info.name)
    before = event_numbers(connection).get(capture.name, 0)
    for number in numbers:
        table, shard = capture.tables[number], shard_sql(capture.spec.tables[number].shard)
        if with_reset:
            connection.execute(
                f"insert into {tables.table} "
                "(changefeed_table, changefeed_shard, changefeed_op, changefeed_at) "
                f"select ?, id, '{RESET}', ? from ({_shards(tables, table.name, shard)}) order by id",
                (number, at_ms),
            )
        columns = table.columns_for(Operation.INSERT, Operation.UPDATE)
        fields = "".join(f", {quote('new_' + table.fields[name])}" for name in columns)
        values = "".join(f", {quote(name)}" for name in columns)
        connection.execute(
            f"insert into {tables.table} "
            f"(changefeed_table, changefeed_shard, changefeed_op, changefeed_at{fields}) "
            f"select ?, {shard}, '{SNAPSHOT}', ?{values} from {quote(table.name)}",
            (number, at_ms),
        )
    _queue(connection, tables, before)


def record_ddl(
    connection: sqlite3.Connection,
    tables: FeedTables,
    before: StoredCapture,
    after: StoredCapture,
    unrecorded: Sequence[Sequence[str]],
    at_ms: int,
) -> None:
    """
    Record an event in each shard of each table whose captured columns, types or key have changed.

    :param tables: of the capture's feed.
    :param unrecorded: for each table the fields whose values in rows of before no event has.
    """
    changed = [
        (number, was, now)
        for number, (was, now) in enumerate(zip(before.tables, after.tables, strict=True))
        if _facts(before, was) != _facts(after, now)
    ]
    if not changed:
        return
    if all(column.name != DDL_COLUMN for column, _ in columns_of(connection, after.name)):
        connection.execute(f"alter table {tables.table} add column {DDL_COLUMN} text")
    last = event_numbers(connection).get(after.name, 0)
    for number, was, now in changed:
        ddl = {
            "statement": None,
            "before": [{"name": one.name, "type": one.type} for one in before.captured_columns(was)],
            "after": [{"name": one.name, "type": one.type} for one in after.captured_columns(now)],
            "by": None,
            "unrecorded": unrecorded[number],
        }
        shards = _shards_with_events(tables, shard_sql(after.spec.tables[number].shard))
        connection.execute(
            f"insert into {tables.table} "
            f"(changefeed_table, changefeed_shard, changefeed_op, changefeed_at, {DDL_COLUMN}) "
            f"select ?, id, '{DDL}', ?, ? from ({shards}) order by id",
            (number, at_ms, json.dumps(ddl, ensure_ascii=False, separators=(",", ":"))),
        )
    _queue(connection, tables, last)


def _facts(capture: StoredCapture, table: StoredTable) -> tuple[object, ...]:
    types = {one.name: one.type.casefold() for one in capture.captured_columns(table)}
    return types, table.key_columns


def _queue(connection: sqlite3.Connection, tables: FeedTables, before: int) -> None:
    """
    Queue recorded events for ordering, as one transaction.

    :param before: the last event that is queued already.
    """
    name = tables.info.name
    _check_shards(connection, tables, before)
    connection.execute(
        f"insert into {tables.outbox} (order_sequence, shard_id, time_hint) "
        "select changefeed_event, changefeed_shard, changefeed_at "
        f"from {tables.table} where changefeed_event > ? order by changefeed_event",
        (before,),
    )
    last = event_numbers(connection).get(name, 0)
    if last > before:
        number_range(connection, name, before + 1, last, next_number(connection))


def _shards(tables: FeedTables, table: str, shard: str) -> str:
    """Return SQL for the shards that may have events of a table, or get some of its rows."""
    found = _shards_with_events(tables, shard)
    return f"{found} union select {shard} from {quote(table)}" if shard.startswith("(") else found


def _shards_with_events(tables: FeedTables, shard: str) -> str:
    """Return SQL for the shards that may have events of a table."""
    if not shard.startswith("("):
        return f"select {shard} as id"
    return f"select shard_id as id from {tables.state} union select id from ({tables.waiting_shards})"


def _check_shards(connection: sqlite3.Connection, tables: FeedTables, before: int) -> None:
    kind = tables.info.shard_key_type
    (wrong,) = connection.execute(
        f"select count(*) from {tables.table} "
        f"where changefeed_event > ? and not ({shard_check(kind, 'changefeed_shard')})",
        (before,),
    ).fetchone()
    if wrong:
        raise FeedSetupError(
            f"capture {tables.info.name!r}: the shard of {wrong} rows is not of type {kind}, so they cannot "
            "be recorded; correct their keys",
            feed=tables.info.name,
        )
