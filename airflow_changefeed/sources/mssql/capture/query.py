# SPDX-License-Identifier: Apache-2.0
"""
The statement that reads a range of a capture: its table joined twice, for the new and the old row.

The columns of both use the same mapping and checks as any feed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_changefeed.core.feed import Column, Shard
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import ColumnTypeError, FeedSetupError, SchemaChangedError
from airflow_changefeed.sources.arrow import (
    DDL,
    NEW,
    OLD,
    WITHOUT_ROWS,
    EventColumns,
    captured_batch,
    captured_schema,
    whole_numbers,
)
from airflow_changefeed.sources.mssql.capture.registry import EVENT_KEY, HEADER
from airflow_changefeed.sources.mssql.feed.feed import MssqlCapture, MssqlFeed
from airflow_changefeed.sources.mssql.feed.mapping import Exported, Part, exported_columns
from airflow_changefeed.sources.mssql.feed.query import RangeQuery
from airflow_changefeed.sources.mssql.names import literal, quote

#: Maximum columns of a select in SQL Server, and the leading columns of every statement.
MAX_SELECTED, _SELECTED_FIRST = 4_096, 2
_STATEMENT, _ROW, _IMAGE = (quote(name) for name in EVENT_KEY)
#: Alias of the table for each row of an event, and the number of its image.
_ALIASES = {NEW: ("n", 1), OLD: ("o", 0)}


def _milliseconds(column: pa.Array) -> pa.Array:
    """Return milliseconds since 1970; the source has no more digits."""
    return column.cast(pa.timestamp("ms")).cast(pa.int64())


def _cast(given: pa.DataType, written: pa.DataType, select: str = "{c}") -> Part:
    return Part(given, written, select, lambda column: column.cast(written))


_INT64, _TEXT = pa.int64(), pa.string()
_WITHOUT_ROWS = ", ".join(map(literal, WITHOUT_ROWS))
#: What is selected of an event besides its rows: declared type, and how it arrives.
_EVENT = {
    "changefeed_table": ("smallint", _cast(pa.int16(), _INT64)),
    "changefeed_op": ("char(1)", _cast(pa.large_string(), _TEXT, "cast({c} as nvarchar(1))")),
    "changefeed_tid": ("bigint", Part(_INT64, _INT64)),
    "changefeed_at": ("datetime2(3)", Part(pa.timestamp("us"), _INT64, convert=_milliseconds)),
    "changefeed_trace": ("nvarchar(512)", _cast(pa.large_string(), _TEXT)),
}
_SESSION = _DDL = ("nvarchar(max)", _cast(pa.large_string(), _TEXT))
_SEQUENCE = ("bigint", Part(_INT64, _INT64))


@dataclass(frozen=True)
class CaptureQuery(RangeQuery):
    """The statements that read a range of a capture."""

    @property
    def capture(self) -> MssqlCapture:
        """What is captured."""
        if self.feed.capture is None:
            raise FeedSetupError(f"feed {self.feed.name!r} is not a capture", feed=self.feed.name)
        return self.feed.capture

    @cached_property
    def columns(self) -> list[Exported]:
        """What is selected: of the event, then its new row, then its old one."""
        return [*self._event, *self._row(NEW), *self._row(OLD)]

    @cached_property
    def schema(self) -> pa.Schema:
        """The batches' schema."""
        return captured_schema(self.capture.shape, [one.field for one in self._image])

    @cached_property
    def _image(self) -> list[Exported]:
        """The columns of a row, including those no longer captured: older events have them."""
        own = [column for column in self.feed.info.columns if column.name.lower() not in HEADER]
        found = exported_columns(self.feed, own)
        selected = _SELECTED_FIRST + len(self._event) + 2 * len(found)
        if selected > MAX_SELECTED:
            raise ColumnTypeError(
                f"feed {self.feed.name!r} cannot be exported: reading its events takes {selected} columns "
                "(old and new row, and second columns of some types), and SQL Server selects at most "
                f"{MAX_SELECTED}. Capture fewer columns",
                feed=self.feed.name,
                columns=list(dict.fromkeys(one.column.name for one in found if one.part.suffix)),
            )
        return found

    def _row(self, image: str) -> list[Exported]:
        alias, _ = _ALIASES[image]
        return [replace(one, source=self.value(alias, one.column.name), image=image) for one in self._image]

    @cached_property
    def _event(self) -> list[Exported]:
        """What is selected beside the rows, which both have the same."""
        flags = [
            _flag("has_new", f"n.{_STATEMENT} is not null and n.[changefeed_op] not in ({_WITHOUT_ROWS})"),
            _flag("has_old", f"o.{_STATEMENT} is not null"),
        ]
        both = {**_EVENT, **({"changefeed_session": _SESSION} if self.capture.has_session else {})}
        if self.capture.has_ddl:
            both["changefeed_ddl"] = _DDL
        described = [
            Exported(Column(name, type_), part, f"coalesce(n.{quote(name)}, o.{quote(name)})")
            for name, (type_, part) in both.items()
        ]
        if self.capture.shape.with_sequence:
            described.append(
                Exported(Column("changefeed_sequence", _SEQUENCE[0]), _SEQUENCE[1], "f.[changefeed_sequence]")
            )
        return [*flags, *described]

    def batch(self, ulids: np.ndarray, arrays: list[pa.Array]) -> pa.RecordBatch:
        first, size = len(self._event), len(self._image)
        event = {one.column.name: array for one, array in zip(self._event, arrays[:first], strict=True)}
        nothing = pa.nulls(len(ulids), _TEXT)
        if "changefeed_ddl" not in event and pc.any(pc.equal(event["changefeed_op"], DDL)).as_py():
            raise SchemaChangedError(
                f"feed {self.feed.name!r}: columns of a captured table were changed during the read; retry",
                feed=self.feed.name,
            )
        return captured_batch(
            self.schema,
            EventColumns(
                ulids=ulids,
                tables=event["changefeed_table"],
                kinds=event["changefeed_op"],
                tids=event["changefeed_tid"],
                sequences=event.get("changefeed_sequence"),
                captured_ms=event["changefeed_at"],
                session=event.get("changefeed_session", nothing),
                trace=event["changefeed_trace"],
                ddl=event.get("changefeed_ddl", nothing),
                new=arrays[first : first + size],
                has_new=whole_numbers(event["has_new"]) == 1,
                old=arrays[first + size :],
                has_old=whole_numbers(event["has_old"]) == 1,
            ),
            self.capture.tables,
        )

    @property
    def may_miss_rows(self) -> bool:
        """Never: without its rows nothing is known of an event, not even its type."""
        return False

    @property
    def missing_advice(self) -> str:
        return (
            "An event of a capture consists only of its rows, so on_missing='keys_only' does not help. "
            "Restore the rows, and remove old events only with purge"
        )

    def text_advice(self, exported: Exported, ulid: Ulid) -> str:
        """Recorded rows stay unchanged when the captured row changes."""
        advice = super().text_advice(exported, ulid)
        if exported.image not in _ALIASES:
            return advice
        alias, number = _ALIASES[exported.image]
        return (
            f"{advice}. Then correct the recorded row: update {alias} set {quote(exported.column.name)} = "
            f"N'...' from {self.feed.table} {alias} join {self.feed.object('feed')} f on "
            f"{alias}.{_STATEMENT} = f.{_STATEMENT} and {alias}.{_ROW} = f.{_ROW} where {alias}.{_IMAGE} = "
            f"{number} and f.ulid = 0x{ulid.bytes.hex()}"
        )

    @cached_property
    def _source(self) -> tuple[str, str, str]:
        """The ULID, whether the event is missing, and the tables with the condition."""
        feed = self.feed
        if feed.table is None:
            raise FeedSetupError(
                f"feed {feed.name!r} cannot be streamed: the table of its events is missing", feed=feed.name
            )
        rows = "".join(
            f" left join {feed.table} {alias} on {alias}.{_STATEMENT} = f.{_STATEMENT} "
            f"and {alias}.{_ROW} = f.{_ROW} and {alias}.{_IMAGE} = {number}"
            for alias, number in _ALIASES.values()
        )
        return (
            "f.ulid",
            f"case when n.{_STATEMENT} is null and o.{_STATEMENT} is null then 1 else 0 end",
            f"from {feed.object('feed')} f{rows} "
            "where f.shard_id = @shard_id and f.ulid > @after and f.ulid <= @upto",
        )


def _flag(name: str, condition: str) -> Exported:
    part = _cast(pa.int32(), _INT64, f"case when {condition} then 1 else 0 end")
    return Exported(Column(name, "int"), part)


def range_query(
    feed: MssqlFeed,
    shard: Shard,
    range_: UlidRange,
    on_missing: str = "fail",
    columns: Collection[str] | None = None,
) -> RangeQuery:
    """Return the statements that read a range of any feed."""
    kind = RangeQuery if feed.capture is None else CaptureQuery
    return kind(feed, shard, range_, on_missing, columns)


def feed_schema(feed: MssqlFeed) -> pa.Schema:
    """
    Return the columns of a stream: ULID, time, then those of the event table, or those of a captured event.

    :raises ColumnTypeError: as :func:`~airflow_changefeed.sources.mssql.feed.mapping.exported_columns`, or
        more columns than one statement can select.
    """
    return range_query(feed, 0, UlidRange(Ulid.MIN, Ulid.MIN)).schema
