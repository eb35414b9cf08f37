# SPDX-License-Identifier: Apache-2.0
"""An event whose row cannot be read: a value that its column cannot hold, or a row that was deleted."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_changefeed.consumers.events.event import FeedEvent, pages
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.values import shown
from airflow_changefeed.exceptions import ChangefeedError, ColumnTypeError, MissingEventError

if TYPE_CHECKING:
    from airflow_changefeed.consumers.events.page import EventColumns, EventPage
    from airflow_changefeed.core.capture import CaptureShape
    from airflow_changefeed.sources.base import FeedSource

#: What reading raises where an event cannot be read.
UNREADABLE = (ColumnTypeError, MissingEventError)


class UnreadableEvent(FeedEvent):
    """
    It takes its place in its shard, so that its turn comes; it is never delivered.

    :param error: why it cannot be read.
    """

    __slots__ = ("error",)

    error: ChangefeedError

    def __init__(self, page: EventPage, position: int, error: ChangefeedError) -> None:
        super().__init__(page, position)
        object.__setattr__(self, "error", error)

    def __reduce__(self) -> tuple[Any, ...]:
        return UnreadableEvent, (self.page, self.position, self.error)


def first_unreadable(events: Iterable[FeedEvent]) -> UnreadableEvent | None:
    """Return the first event of some that cannot be read."""
    return next((event for event in events if isinstance(event, UnreadableEvent)), None)


def unreadable_event(
    source: FeedSource,
    feed: str,
    shard: Shard,
    columns: EventColumns,
    ulid: Ulid,
    error: ChangefeedError,
    dead_letter: int | None = None,
) -> UnreadableEvent:
    """
    Return what is known of an event that cannot be read: its key, its table and its transaction, if readable.

    :raises ColumnTypeError: no event of the feed can be read.
    """
    from airflow_changefeed.consumers.events.page import unknown_page
    from airflow_changefeed.sources.captured import shape_of

    schema = source.schema(feed)
    shape = shape_of(schema)
    # A plain feed's keys are its own columns.
    keys = {feed: {column.name: column.name for column in source.feed(feed).key_columns}}
    if shape is not None:
        keys = {name: _key_fields(shape, name) for name in shape.tables}
    range_ = UlidRange(ulid.previous(), ulid)
    page = None
    for wanted in ({field for fields in keys.values() for field in fields.values()}, set[str]()):
        with suppress(*UNREADABLE):
            found = pages(source, feed, shard, range_, columns, 1, dead_letter, only=wanted)
            page = page or next(found, None)
    event = FeedEvent(page or unknown_page(feed, shard, columns, schema, ulid, dead_letter), 0)
    row = (event.new or event.old) if event.is_captured else event.row
    values = [
        f"{column} = {shown(row[field])}"
        for column, field in keys.get(event.name, {}).items()
        if row and row.get(field) is not None
    ]
    where = f"table {event.name!r}" if event.name else f"feed {feed!r}"
    told = f" ({', '.join(values)})" if values else ""
    message = f"event {ulid} of shard {shard_text(shard)}, {where}{told}, cannot be read: {error.message}"
    facts = {**error.facts, "feed": feed, "shard": shard, "ulid": str(ulid)}
    return UnreadableEvent(event.page, 0, type(error)(message, **facts))


def _key_fields(shape: CaptureShape, table: str) -> dict[str, str]:
    captured = shape.tables[table]
    fields = {column: field for columns in captured.columns.values() for column, field in columns.items()}
    return {column: fields[column] for column in captured.key_columns if column in fields}
