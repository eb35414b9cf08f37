# SPDX-License-Identifier: Apache-2.0
"""The table of a capture's events, and recording the current rows of captured tables into it."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.core.feed import Column
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.sqlite.capture.plan import declared, shard_sql
from airflow_changefeed.sources.sqlite.capture.registry import StoredCapture
from airflow_changefeed.sources.sqlite.capture.transaction import event_numbers, next_number, number_range
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, quote
from airflow_changefeed.sources.sqlite.feed.types import Storage, has_text_affinity, shard_check, storage_of
from airflow_changefeed.sql import fill, load_sql

#: Of an event, as readers know them.
_SNAPSHOT, _RESET = "r", "t"


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
                f"select ?, id, '{_RESET}', ? from ({_shards(tables, table.name, shard)}) order by id",
                (number, at_ms),
            )
        columns = table.columns_for(Operation.INSERT, Operation.UPDATE)
        fields = "".join(f", {quote('new_' + table.fields[name])}" for name in columns)
        values = "".join(f", {quote(name)}" for name in columns)
        connection.execute(
            f"insert into {tables.table} "
            f"(changefeed_table, changefeed_shard, changefeed_op, changefeed_at{fields}) "
            f"select ?, {shard}, '{_SNAPSHOT}', ?{values} from {quote(table.name)}",
            (number, at_ms),
        )
    _check_shards(connection, tables, before)
    connection.execute(
        f"insert into {tables.outbox} (order_sequence, shard_id, time_hint) "
        "select changefeed_event, changefeed_shard, changefeed_at "
        f"from {tables.table} where changefeed_event > ? order by changefeed_event",
        (before,),
    )
    last = event_numbers(connection).get(capture.name, 0)
    if last > before:
        number_range(connection, capture.name, before + 1, last, next_number(connection))


def _shards(tables: FeedTables, table: str, shard: str) -> str:
    """Return SQL for the shards that may have events of a table, or get some of its rows."""
    if not shard.startswith("("):
        return f"select {shard} as id"
    return (
        f"select shard_id as id from {tables.state} union select id from ({tables.waiting_shards}) "
        f"union select {shard} from {quote(table)}"
    )


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
