# SPDX-License-Identifier: Apache-2.0
"""
Streams of a range of SQL Server as Arrow batches, row by row through Python.

Only types whose values the driver gives exactly: the others are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from functools import cached_property
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from airflow_changefeed.core.feed import Column, Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import ColumnTypeError, FeedSetupError, MissingEventError
from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD, ulid_texts, ulid_times
from airflow_changefeed.sources.mssql.names import MssqlFeed, quote
from airflow_changefeed.sources.mssql.session import Session
from airflow_changefeed.sources.mssql.types import Declared, parse

#: Arrow type and Python class of each type without length.
_PLAIN: dict[str, tuple[pa.DataType, type]] = {
    "bit": (pa.bool_(), bool),
    "tinyint": (pa.uint8(), int),
    "smallint": (pa.int16(), int),
    "int": (pa.int32(), int),
    "bigint": (pa.int64(), int),
    "real": (pa.float32(), float),
    "float": (pa.float64(), float),
    "money": (pa.decimal128(19, 4), Decimal),
    "smallmoney": (pa.decimal128(10, 4), Decimal),
    "rowversion": (pa.binary(), bytes),
    "uniqueidentifier": (pa.string(), str),
    "date": (pa.date32(), date),
    "smalldatetime": (pa.timestamp("us"), datetime),
}
#: Decimal digits of seconds that the driver gives; it cuts the seventh.
_EXACT_DIGITS = 6
#: Bytes of a batch, by the largest row of a sample: long values, not many rows, fill a worker's memory.
_BATCH_BYTES = 64 * 1024 * 1024
_SAMPLE_ROWS = 100
#: Declared bytes of a value from which on the sample is worth its question.
_LONG = 1_000
_FIRST_COLUMNS = 2


def arrow_type(column: Column) -> tuple[pa.DataType, type] | None:
    """Return the Arrow type of a column and the class of its values; None for one that is not exact."""
    found = parse(column)
    if found.name in _PLAIN:
        return _PLAIN[found.name]
    if found.name in ("char", "varchar", "nchar", "nvarchar"):
        return pa.string(), str
    if found.name in ("binary", "varbinary"):
        return pa.binary(), bytes
    if found.name in ("decimal", "numeric") and found.length:
        return pa.decimal128(found.length, found.scale), Decimal
    if found.name in ("datetime2", "time") and found.length is not None and found.length <= _EXACT_DIGITS:
        return (pa.timestamp("us"), datetime) if found.name == "datetime2" else (pa.time64("us"), time)
    return None


def feed_schema(feed: MssqlFeed) -> pa.Schema:
    """
    Return the columns of a stream: ULID, time, then those of the event table.

    :raises ColumnTypeError: columns that cannot be exported unchanged; names all of them.
    """
    types = [(column, arrow_type(column)) for column in feed.info.columns]
    refused = [f"{column.name!r} of type {column.type}" for column, found in types if found is None]
    if refused:
        raise ColumnTypeError(
            f"feed {feed.name!r}: column {', column '.join(refused)} cannot be exported unchanged yet: give "
            "the table a column of a type that can, for example datetime2(6) or nvarchar(max)",
            feed=feed.name,
            columns=[column.name for column, found in types if found is None],
        )
    fields = [pa.field(column.name, found[0]) for column, found in types if found is not None]
    return pa.schema([ULID_FIELD, TIME_FIELD, *fields])


@dataclass(frozen=True)
class RangeQuery:
    """
    The statement that reads a range: ULID, whether the row is missing, then the columns.

    :param range: ``(after, upto]``.
    """

    feed: MssqlFeed
    shard: Shard
    range: UlidRange
    on_missing: str

    @cached_property
    def schema(self) -> pa.Schema:
        """The batches' schema."""
        return feed_schema(self.feed)

    @cached_property
    def classes(self) -> list[type]:
        """The Python class of each column's values."""
        return [found[1] for column in self.feed.info.columns if (found := arrow_type(column))]

    @property
    def values(self) -> tuple[Any, ...]:
        """The statement's parameters."""
        shard = () if self._has_no_shard else (self.feed.to_sql(self.shard),)
        return (self.range.after.bytes, self.range.upto.bytes, *shard)

    @property
    def _has_no_shard(self) -> bool:
        return self.feed.is_serialized and self.feed.shard_column is None

    @property
    def _declarations(self) -> str:
        shard = "" if self._has_no_shard else f", @shard_id {self.feed.shard_key_type} = ?"
        return f"declare @after binary(16) = ?, @upto binary(16) = ?{shard}; "

    @cached_property
    def _source(self) -> tuple[str, str, str]:
        """The ULID, whether the row is missing, and the tables with the condition."""
        feed = self.feed
        if feed.table is None or (feed.is_serialized and feed.ulid_column is None):
            raise FeedSetupError(
                f"feed {feed.name!r} cannot be streamed: its event table or the column of its ULIDs is gone",
                feed=feed.name,
            )
        if feed.is_serialized:
            ulid, missing, tables = f"e.{quote(feed.ulid_column or '')}", "0", f"{feed.table} e"
            shard = f"e.{quote(feed.shard_column)}" if feed.shard_column else None
        else:
            keys = [quote(column.name) for column in feed.info.key_columns]
            ulid, missing = "f.ulid", f"case when e.{keys[0]} is null then 1 else 0 end"
            joined = " and ".join(f"e.{key} = f.{key}" for key in keys)
            tables = f"{feed.object('feed')} f left join {feed.table} e on {joined}"
            shard = "f.shard_id"
        of_shard = f"{shard} = @shard_id and " if shard else ""
        return ulid, missing, f"from {tables} where {of_shard}{ulid} > @after and {ulid} <= @upto"

    def _column(self, column: Column) -> str:
        """Say where a column comes from: a key from the feed, as its row may be gone."""
        is_fed = not self.feed.is_serialized and column in self.feed.info.key_columns
        return f"{'f' if is_fed else 'e'}.{quote(column.name)}"

    @property
    def sql(self) -> str:
        """The statement; rows in ascending ULID."""
        ulid, missing, source = self._source
        values = ", ".join(
            f"{_selected(parse(column), self._column(column))} as c{number}"
            for number, column in enumerate(self.feed.info.columns)
        )
        return f"{self._declarations}select {ulid} as u, {missing} as m, {values} {source} order by {ulid}"

    @property
    def size_sql(self) -> str | None:
        """Gives the bytes of the largest of the range's first rows; None where all rows are short."""
        long = [column for column in self.feed.info.columns if _is_long(parse(column))]
        if not long:
            return None
        ulid, _, source = self._source
        sizes = " + ".join(f"isnull(datalength({self._column(column)}), 0)" for column in long)
        sample = f"select top ({_SAMPLE_ROWS}) {sizes} as size {source} order by {ulid}"
        return f"{self._declarations}select max(size) from ({sample}) sample"


def _selected(found: Declared, value: str) -> str:
    """Write a column as the driver gives it exactly; code pages are the server's to read."""
    if found.name in ("char", "varchar"):
        wide = found.length if found.length is not None and found.length <= 4_000 else "max"
        return (
            f"convert({'nchar' if found.name == 'char' and wide != 'max' else 'nvarchar'}({wide}), {value})"
        )
    return value


def _is_long(found: Declared) -> bool:
    wide = 2 if found.name in ("nchar", "nvarchar") else 1
    is_variable = found.name in ("char", "varchar", "nchar", "nvarchar", "binary", "varbinary")
    return found.is_max or (is_variable and (found.length or 0) * wide >= _LONG)


def bounded_rows(session: Session, query: RangeQuery, batch_rows: int) -> int:
    """Return the rows of a batch: fewer than asked for where they are so long that memory would run out."""
    sql = query.size_sql
    if sql is None:
        return batch_rows
    ((size,),) = session.rows(sql, *query.values)
    return max(1, min(batch_rows, _BATCH_BYTES // max(size or 0, 1)))


def stream(session: Session, query: RangeQuery, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Stream a range; the connection is busy until the last batch."""
    schema = query.schema
    for rows in session.batches(query.sql, query.values, batch_rows):
        columns = list(zip(*rows, strict=True))
        raw = np.frombuffer(b"".join(columns[0]), dtype=np.uint8).reshape(-1, 16)
        _check_missing(query, columns)
        arrays = [
            _array(query, number, columns[_FIRST_COLUMNS + number])
            for number in range(len(query.feed.info.columns))
        ]
        yield pa.RecordBatch.from_arrays([ulid_texts(raw), ulid_times(raw), *arrays], schema=schema)


#: What the driver gives in another class than the one that Arrow takes.
_CONVERTED: dict[type, Callable[[Any], Any]] = {UUID: str}


def _array(query: RangeQuery, number: int, values: tuple[Any, ...]) -> pa.Array:
    column = query.feed.info.columns[number]
    found = set(map(type, values)) - {type(None)}
    if found and found <= _CONVERTED.keys():
        convert = _CONVERTED[found.pop()]
        values = tuple(None if value is None else convert(value) for value in values)
    elif found - {query.classes[number]}:
        # Arrow would cut 2.5 to 2 in a column of integers without a word.
        raise _column_error(
            query, column, f"the driver gave {', '.join(sorted(one.__name__ for one in found))}"
        )
    try:
        return pa.array(values, type=query.schema.field(_FIRST_COLUMNS + number).type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _column_error(query, column, str(error)) from None


def _check_missing(query: RangeQuery, columns: list[tuple[Any, ...]]) -> None:
    if query.on_missing != "fail" or not any(columns[1]):
        return
    name = query.feed.name
    ulid = str(Ulid.of_bytes(columns[0][columns[1].index(1)]))
    raise MissingEventError(
        f"feed {name!r} shard {shard_text(query.shard)}: the row of event {ulid} was deleted from {name!r} "
        f"after it was fed, {sum(columns[1])} in this batch. Restore the rows, or export with "
        "on_missing='keys_only'",
        feed=name,
        shard=query.shard,
        ulid=ulid,
    )


def _column_error(query: RangeQuery, column: Column, what: str) -> ColumnTypeError:
    name = query.feed.name
    return ColumnTypeError(
        f"feed {name!r} shard {shard_text(query.shard)}: column {column.name!r} of type {column.type} "
        f"cannot be exported unchanged: {what}. Correct the value, or declare the column as what it holds",
        feed=name,
        shard=query.shard,
        column=column.name,
    )
