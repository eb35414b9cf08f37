# SPDX-License-Identifier: Apache-2.0
"""
Recorded values of another class than their column is exported as.

Readers of a capture's events never skip such a value: the whole range is refused. So nobody has seen the
event, and correcting the value changes nothing that was exported (ADR 0007).
"""

from __future__ import annotations

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.sources.captured import NEW, OLD
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, any_of, quote
from airflow_changefeed.sources.sqlite.feed.types import Storage, storage_of, unexportable_condition

#: A function of SQL that this module registers: whether bytes are UTF-8.
_IS_UTF8 = "changefeed_is_utf8"
#: What stands in a statement for a value that a person has to write.
_PLACEHOLDERS = {Storage.TEXT: "'...'", Storage.BLOB: "x'...'"}


def unexportable_error(tables: FeedTables, shard: Shard, range_: UlidRange) -> ColumnTypeError | None:
    """
    Return the error that names the first value of a range that no export can represent, with the statement
    that corrects it: to correct the captured table does not correct what was recorded.

    :return: None if there is no such value, or the feed is not a capture's.
    """
    capture = tables.capture
    if capture is None:
        return None
    tables.connection.create_function(_IS_UTF8, 1, _is_utf8, deterministic=True)
    conditions = {
        (image, field): unexportable_condition(field, f"e.{quote(f'{image}_{field.name}')}", _IS_UTF8)
        for image in (OLD, NEW)
        for field in capture.fields
    }
    row = tables.execute(
        f"select e.changefeed_event, e.changefeed_table, f.ulid from {tables.feed} as f "
        f"join {tables.table} as e on e.changefeed_event = f.changefeed_event "
        f"where f.{tables.shard_condition} and f.ulid > ? and f.ulid <= ? "
        f"and ({any_of(list(conditions.values()))}) order by f.ulid limit 1",
        (tables.to_sql(shard), range_.after.bytes, range_.upto.bytes),
    ).fetchone()
    if row is None:
        return None
    event, number, ulid = row
    image, field, kind = next(
        (image, field, kind)
        for (image, field), condition in conditions.items()
        for (kind,) in tables.execute(
            f"select typeof({quote(f'{image}_{field.name}')}) from {tables.table} as e "
            f"where changefeed_event = ? and {condition}",
            (event,),
        )
    )
    table, storage = capture.tables[number], storage_of(field)
    column = {place: name for name, place in table.fields.items()}.get(field.name, field.name)
    statement = (
        f"update {tables.table} set {quote(f'{image}_{field.name}')} = {_PLACEHOLDERS.get(storage, '...')} "
        f"where changefeed_event = {event}"
    )
    # The value itself is not repeated: it may be anything.
    return ColumnTypeError(
        f"feed {tables.info.name!r} shard {shard_text(shard)}: column {column!r} of table {table.name!r}, "
        f"declared {field.type or 'without type'!r}, cannot be exported unchanged as {storage.value}: the "
        f"{image} row of event {event} holds another class ({kind}). Correct the rows of {table.name!r} that "
        f"have such values. Then correct the recorded row: {statement}",
        feed=tables.info.name,
        shard=shard,
        column=f"{image}.{column}",
        event=event,
        ulid=str(Ulid.of_bytes(ulid)),
    )


def _is_utf8(value: bytes | None) -> bool:
    try:
        # SQLite may ask for values that are not text.
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True
