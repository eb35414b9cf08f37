# SPDX-License-Identifier: Apache-2.0
"""The outermost edge: a source whose feed of flights is that of a capture, of whatever columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from airflow_changefeed.core.capture import CaptureShape
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.sources.arrow import captured_schema
from airflow_changefeed.sources.base import FeedSource
from tests.unit.capture.events import Event, capture_shape, captured_table, typed_batch

TABLE = "dbo.orders"
ROW = (
    pa.field("id", pa.int64()),
    pa.field("text", pa.string()),
    pa.field("amount", pa.decimal128(20, 4)),
    pa.field("at", pa.timestamp("us")),
    pa.field("at_100ns", pa.uint8()),
    pa.field("raw", pa.binary()),
)
COLUMNS = ("id", "text", "amount", "at", "raw")


def row(number: int) -> dict[str, Any]:
    """Return the values of a row; a field that ``ROW`` lacks is for a table that was changed."""
    return {
        "id": number,
        "text": None if number % 5 == 0 else f'row "{number}"',
        "amount": Decimal(number).scaleb(-4),
        "at": datetime(2026, 1, 1) + timedelta(minutes=number),
        "at_100ns": number % 10,
        "raw": b"\x00" * (number % 4),
        "late": number * 10,
    }


def event(number: int) -> Event:
    """Return an event of each kind in turn: an insert, an update, a delete."""
    kind = "iud"[number % 3]
    return Event(
        kind,
        None if kind == "i" else row(number),
        None if kind == "d" else row(number + 1),
        tid=number // 4,
        session='{"x-hasura-role":"admin"}' if number % 2 else None,
        trace="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01" if number % 2 else None,
    )


class CaptureSource:
    """
    A feed source that gives an event of a capture for each event of a plain feed, under the same ULID.

    :param fields: of old and new.
    :param columns: of the captured table.
    """

    def __init__(
        self, source: FeedSource, fields: Sequence[pa.Field] = ROW, columns: Sequence[str] = COLUMNS
    ) -> None:
        self.source, self.fields = source, fields
        self.shape: CaptureShape = capture_shape({TABLE: captured_table(columns)})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def schema(self, feed: str) -> pa.Schema:
        """Return a capture's columns."""
        assert feed
        return captured_schema(self.shape, self.fields)

    @contextmanager
    def open(self, feed: str) -> Iterator[Any]:
        """Open the plain feed, with a capture's columns."""
        with self.source.open(feed) as opened, patch.object(opened, "schema", lambda: self.schema(feed)):
            yield opened

    def stream(self, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        """Stream a capture's events."""
        for batch in self.source.stream(*arguments, **options):
            ulids = [Ulid.parse_text(text) for text in batch.column("changefeed_ulid").to_pylist()]
            numbers = batch.column("id").to_pylist()
            yield typed_batch(
                self.shape,
                self.fields,
                [event(each) for each in numbers],
                ulids=ulids,
                first=numbers[0],
            )
