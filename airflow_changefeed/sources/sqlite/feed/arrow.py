# SPDX-License-Identifier: Apache-2.0
"""The statement that reads a SQLite range as Arrow batches, and its streams by Python's ``sqlite3``."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_changefeed.core.feed import Column, Shard, shard_text
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.exceptions import ColumnTypeError, MissingEventError
from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD, ulid_texts, ulid_times
from airflow_changefeed.sources.sqlite.feed.names import FeedTables, quote
from airflow_changefeed.sources.sqlite.feed.types import Storage, misfit_condition, storage_of

ARROW = {
    Storage.INTEGER: pa.int64(),
    Storage.REAL: pa.float64(),
    Storage.TEXT: pa.string(),
    Storage.BLOB: pa.binary(),
}
#: ULID, and what is wrong with the row.
FIRST_COLUMNS = 2
#: Bytes of a batch, by the largest row of a sample: long values, not many rows, fill a worker's memory.
_BATCH_BYTES = 64 * 1024 * 1024
_SAMPLE_ROWS = 100
_TERMS = 100
_NOT_UTF8 = re.compile(r"Could not decode to UTF-8 column 'c(\d+)'")


@dataclass(frozen=True)
class RangeQuery:
    """
    The statement that reads a range: ULID, what is wrong with the row, then the columns.

    What is wrong is the number of the first column whose value the reader would change, from 1; -1 where the
    event's row is missing and must not be; or 0. One column says it all, since a column more takes the reader
    longer than all the comparisons.

    :param range: ``(after, upto]``.
    :param cuts_fractions: whether its reader would turn 2.5 in a column of integers to 2 without a word.
    """

    tables: FeedTables
    shard: Shard
    range: UlidRange
    on_missing: str
    cuts_fractions: bool = True

    @property
    def columns(self) -> tuple[Column, ...]:
        """The event table's columns, in the order of the statement."""
        return self.tables.info.columns

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the stream: ULID, time, then those of the event table."""
        fields = [pa.field(column.name, ARROW[storage_of(column)]) for column in self.columns]
        return pa.schema([ULID_FIELD, TIME_FIELD, *fields])

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The statement's parameters."""
        return (self.tables.to_sql(self.shard), self.range.after.bytes, self.range.upto.bytes)

    @property
    def sql(self) -> str:
        """The statement; rows in ascending ULID."""
        tables = self.tables
        keys = {column.name for column in tables.info.key_columns}
        if tables.is_serialized:
            values = [f"e.{quote(column.name)}" for column in self.columns]
            cases, source = [], f"{tables.table} e"
            ulid = f"e.{tables.ulid}"
        else:
            values = [
                f"{'f' if column.name in keys else 'e'}.{quote(column.name)}" for column in self.columns
            ]
            joined = " and ".join(f"e.{key} = f.{key}" for key in tables.keys)
            cases = [f"when e.{tables.keys[0]} is null then -1"] if self.on_missing == "fail" else []
            source = f"{tables.feed} f left join {tables.table} e on {joined}"
            ulid = "f.ulid"
        cases += self.misfits(values)
        wrong = f"case {' '.join(cases)} else 0 end" if cases else "0"
        alias = "e" if tables.is_serialized else "f"
        where = f"{qualified(tables.shard_condition, alias)} and {ulid} > ? and {ulid} <= ?"
        names = ", ".join(f"{value} as c{number}" for number, value in enumerate(values))
        return f"select {ulid} as u, {wrong} as x, {names} from {source} where {where} order by {ulid}"

    def misfits(self, values: Sequence[str], skip: int = 0) -> list[str]:
        """
        Return the cases of columns whose values would be changed.

        :param skip: columns that are ours.
        """
        cases = []
        for number, (column, value) in enumerate(zip(self.columns, values, strict=True)):
            if number < skip:
                continue
            condition = misfit_condition(column, value, cuts_fractions=self.cuts_fractions)
            if condition:
                cases.append(f"when {condition} then {number + 1}")
        return cases

    def batch(self, ulids: np.ndarray, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Put a batch together from the columns of the statement."""
        return pa.RecordBatch.from_arrays(
            [ulid_texts(ulids), ulid_times(ulids), *columns], schema=self.schema
        )

    @property
    def size_sql(self) -> str | None:
        """Gives the bytes of the largest of the range's first rows; None where no column has a length."""
        sizes = [
            f"coalesce(length(c{number}), 0)"
            for number, column in enumerate(self.columns)
            if storage_of(column) in (Storage.TEXT, Storage.BLOB)
        ]
        # In groups, as SQLite adds up no more than 1,000 terms in a row.
        groups = [" + ".join(sizes[at : at + _TERMS]) for at in range(0, len(sizes), _TERMS)]
        total = " + ".join(f"({group})" for group in groups)
        return f"select max({total}) from ({self.sql} limit {_SAMPLE_ROWS})" if sizes else None


def bounded_rows(connection: sqlite3.Connection, query: RangeQuery, batch_rows: int) -> int:
    """Return the rows of a batch: fewer than asked for where they are so long that memory would run out."""
    if query.size_sql is None:
        return batch_rows
    (size,) = connection.execute(query.size_sql, query.parameters).fetchone()
    return max(1, min(batch_rows, _BATCH_BYTES // max(size or 0, 1)))


def qualified(condition: str, alias: str) -> str:
    """Return the condition of a shard for a table's alias."""
    return condition if condition.startswith("0 ") else f"{alias}.{condition}"


def stream_sqlite3(
    connection: sqlite3.Connection, query: RangeQuery, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Stream by Python's sqlite3, on the connection's present snapshot."""
    cursor = connection.execute(query.sql, query.parameters)
    with closing(cursor):
        while rows := _fetch(query, cursor, batch_rows):
            columns = list(zip(*rows, strict=True))
            check_rows(query, np.array(columns[1]), columns[0])
            arrays = [
                _array(query, column, columns[FIRST_COLUMNS + number])
                for number, column in enumerate(query.columns)
            ]
            raw = np.frombuffer(b"".join(columns[0]), dtype=np.uint8).reshape(-1, 16)
            yield query.batch(raw, arrays)


def _fetch(query: RangeQuery, cursor: sqlite3.Cursor, rows: int) -> list[Any]:
    try:
        return cursor.fetchmany(rows)
    except sqlite3.OperationalError as error:
        found = _NOT_UTF8.match(str(error))
        if found is None:
            raise
        # The text itself is not repeated: it may be anything.
        raise column_error(query, query.columns[int(found[1])], "a text is not valid UTF-8") from None


def _array(query: RangeQuery, column: Column, values: tuple[Any, ...]) -> pa.Array:
    try:
        return pa.array(values, type=ARROW[storage_of(column)])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise column_error(query, column, str(error)) from None


def check_rows(query: RangeQuery, wrong: np.ndarray, ulids: Sequence[Any]) -> None:
    """
    Raise for the first row that is missing, or holds a value of another class.

    :param wrong: as the statement says it.
    """
    if not wrong.any():
        return
    row = int(np.flatnonzero(wrong)[0])
    if wrong[row] > 0:
        column = query.columns[int(wrong[row]) - 1]
        raise column_error(query, column, f"the value at ULID {_ulid(ulids[row])} is of another class")
    feed = query.tables.info.name
    raise MissingEventError(
        f"feed {feed!r} shard {shard_text(query.shard)}: the row of event {_ulid(ulids[row])} was "
        f"deleted from {feed!r} after it entered the feed; {int((wrong < 0).sum())} such rows in this batch. "
        "Restore the rows, or export with on_missing='keys_only'",
        feed=feed,
        shard=query.shard,
        ulid=_ulid(ulids[row]),
    )


def _ulid(value: Any) -> str:
    from airflow_changefeed.core.ulid import Ulid

    return str(Ulid.of_bytes(value.as_py() if isinstance(value, pa.Scalar) else value))


def column_error(query: RangeQuery, column: Column, what: str) -> ColumnTypeError:
    """Return the error that says what of a column cannot be exported unchanged."""
    feed = query.tables.info.name
    return ColumnTypeError(
        f"feed {feed!r} shard {shard_text(query.shard)}: column {column.name!r}, declared "
        f"{column.type or 'without type'!r}, cannot be exported unchanged as {storage_of(column).value}: "
        f"{what}. Correct the value, or declare the column as what it holds",
        feed=feed,
        shard=query.shard,
        column=column.name,
    )
