# SPDX-License-Identifier: Apache-2.0
"""
Streams of a SQLite range as Arrow batches, by Python's ``sqlite3`` or by ADBC's SQLite driver.

ADBC reads about twice as fast, but brings a SQLite of its own: two copies of SQLite that open one file in one
process release each other's POSIX locks (https://www.sqlite.org/howtocorrupt.html, 2.2.1). So it is used only
where the caller knows that nobody else in the process has the file open: in Spark's Python workers.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_changefeed.core.feed import Column, Shard, shard_text
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    LockTimeoutError,
    MissingEventError,
    SourceUnavailableError,
)
from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD, ulid_bytes, ulid_texts, ulid_times
from airflow_changefeed.sources.sqlite.names import FeedTables, quote
from airflow_changefeed.sources.sqlite.types import Storage, misfit_condition, storage_of

_ARROW = {
    Storage.INTEGER: pa.int64(),
    Storage.REAL: pa.float64(),
    Storage.TEXT: pa.string(),
    Storage.BLOB: pa.binary(),
}
#: A literal of each type: ADBC takes a column's type from its first rows, so the first row must say it.
_TYPED = {Storage.INTEGER: "0", Storage.REAL: "0.5", Storage.TEXT: "''", Storage.BLOB: "x''"}
_FIRST_COLUMNS = 3
#: Bytes of a batch, by the largest row of a sample: long values, not many rows, fill a worker's memory.
_BATCH_BYTES = 64 * 1024 * 1024
_SAMPLE_ROWS = 100
_NOT_UTF8 = re.compile(r"Could not decode to UTF-8 column 'c(\d+)'")


def feed_schema(tables: FeedTables) -> pa.Schema:
    """Return the columns of a stream: ULID, time, then those of the event table."""
    fields = [pa.field(column.name, _ARROW[storage_of(column)]) for column in tables.info.columns]
    return pa.schema([ULID_FIELD, TIME_FIELD, *fields])


@dataclass(frozen=True)
class RangeQuery:
    """
    The statement that reads a range: ULID, whether the row is missing, number of a misfit column, then the
    columns.

    :param range: ``(after, upto]``.
    """

    tables: FeedTables
    shard: Shard
    range: UlidRange
    on_missing: str

    @property
    def columns(self) -> tuple[Column, ...]:
        """The event table's columns, in the order of the statement."""
        return self.tables.info.columns

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
            missing, source = "0", f"{tables.table} e"
            ulid = f"e.{tables.ulid}"
        else:
            values = [
                f"{'f' if column.name in keys else 'e'}.{quote(column.name)}" for column in self.columns
            ]
            joined = " and ".join(f"e.{key} = f.{key}" for key in tables.keys)
            missing, source = (
                f"e.{tables.keys[0]} is null",
                f"{tables.feed} f left join {tables.table} e on {joined}",
            )
            ulid = "f.ulid"
        alias = "e" if tables.is_serialized else "f"
        where = f"{_qualified(tables.shard_condition, alias)} and {ulid} > ? and {ulid} <= ?"
        names = ", ".join(f"{value} as c{number}" for number, value in enumerate(values))
        return (
            f"select {ulid} as u, {missing} as m, {_misfit(self.columns, values)} as x, {names} "
            f"from {source} where {where} order by {ulid}"
        )

    @property
    def size_sql(self) -> str | None:
        """Gives the bytes of the largest of the range's first rows; None where no column has a length."""
        sizes = [
            f"coalesce(length(c{number}), 0)"
            for number, column in enumerate(self.columns)
            if storage_of(column) in (Storage.TEXT, Storage.BLOB)
        ]
        return f"select max({' + '.join(sizes)}) from ({self.sql} limit {_SAMPLE_ROWS})" if sizes else None

    @property
    def typed_sql(self) -> str:
        """The statement after one row that says each column's type; ``order by`` keeps that row first."""
        literals = ", ".join(_TYPED[storage_of(column)] for column in self.columns)
        return f"select x'' as u, 0 as m, 0 as x, {literals} union all select * from ({self.sql}) order by 1"


def bounded_rows(connection: sqlite3.Connection, query: RangeQuery, batch_rows: int) -> int:
    """Return the rows of a batch: fewer than asked for where they are so long that memory would run out."""
    if query.size_sql is None:
        return batch_rows
    (size,) = connection.execute(query.size_sql, query.parameters).fetchone()
    return max(1, min(batch_rows, _BATCH_BYTES // max(size or 0, 1)))


def _qualified(condition: str, alias: str) -> str:
    return condition if condition.startswith("0 ") else f"{alias}.{condition}"


def _misfit(columns: tuple[Column, ...], values: list[str]) -> str:
    conditions = [(number, misfit_condition(column, values[number])) for number, column in enumerate(columns)]
    cases = " ".join(f"when {condition} then {number + 1}" for number, condition in conditions if condition)
    return f"case {cases} else 0 end" if cases else "0"


def stream_sqlite3(
    connection: sqlite3.Connection, query: RangeQuery, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Stream by Python's sqlite3, on the connection's present snapshot."""
    schema = feed_schema(query.tables)
    cursor = connection.execute(query.sql, query.parameters)
    with closing(cursor):
        while rows := _fetch(query, cursor, batch_rows):
            columns = list(zip(*rows, strict=True))
            _check(query, np.array(columns[1]), np.array(columns[2]), columns)
            arrays = [
                _array(query, column, columns[_FIRST_COLUMNS + number])
                for number, column in enumerate(query.columns)
            ]
            raw = np.frombuffer(b"".join(columns[0]), dtype=np.uint8).reshape(-1, 16)
            yield pa.RecordBatch.from_arrays([ulid_texts(raw), ulid_times(raw), *arrays], schema=schema)


def _fetch(query: RangeQuery, cursor: sqlite3.Cursor, rows: int) -> list[Any]:
    try:
        return cursor.fetchmany(rows)
    except sqlite3.OperationalError as error:
        found = _NOT_UTF8.match(str(error))
        if found is None:
            raise
        # The text itself is not repeated: it may be anything.
        raise _column_error(query, query.columns[int(found[1])], "a text is not UTF-8") from None


def _array(query: RangeQuery, column: Column, values: tuple[Any, ...]) -> pa.Array:
    try:
        return pa.array(values, type=_ARROW[storage_of(column)])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise _column_error(query, column, str(error)) from None


def stream_adbc(
    path: str, query: RangeQuery, batch_rows: int, lock_timeout: float
) -> Iterator[pa.RecordBatch]:
    """Stream by ADBC; nobody else in this process may have the file open (see the module)."""
    import adbc_driver_manager
    import adbc_driver_sqlite.dbapi

    schema = feed_schema(query.tables)
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    with adbc_driver_sqlite.dbapi.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"pragma busy_timeout = {int(lock_timeout * 1000)}").fetchall()
        cursor.adbc_statement.set_options(
            **{adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value: str(batch_rows)}
        )
        try:
            cursor.execute(query.typed_sql, query.parameters)
            reader = cursor.fetch_record_batch()
            yield from _typed_batches(query, schema, reader)
        except (OSError, adbc_driver_manager.Error, pa.ArrowInvalid) as error:
            raise _named(query, str(error)) from None


def _typed_batches(
    query: RangeQuery, schema: pa.Schema, reader: pa.RecordBatchReader
) -> Iterator[pa.RecordBatch]:
    expected = [field.type for field in schema][2:]
    for number, (found, wanted) in enumerate(
        zip([field.type for field in reader.schema][_FIRST_COLUMNS:], expected, strict=True)
    ):
        if found != wanted:
            raise _column_error(query, query.columns[number], f"it holds {found} besides {wanted}")
    is_first = True
    for batch in reader:
        rows = batch.slice(1) if is_first else batch
        is_first = False
        if not rows.num_rows:
            continue
        _check(query, rows.column(1).to_numpy(), rows.column(2).to_numpy(), rows.columns)
        arrays = [rows.column(_FIRST_COLUMNS + number) for number in range(len(query.columns))]
        for number, array in enumerate(arrays):
            if pa.types.is_string(array.type):
                _check_text(query, query.columns[number], array)
        raw = ulid_bytes(rows.column(0))
        yield pa.RecordBatch.from_arrays([ulid_texts(raw), ulid_times(raw), *arrays], schema=schema)


def _check_text(query: RangeQuery, column: Column, array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _column_error(query, column, str(error)) from None


def _check(query: RangeQuery, missing: np.ndarray, misfit: np.ndarray, columns: Any) -> None:
    """Raise for the first row that is missing, if that is an error, or holds a value of another class."""
    if misfit.any():
        row = int(np.flatnonzero(misfit)[0])
        column = query.columns[int(misfit[row]) - 1]
        raise _column_error(query, column, f"the value at ULID {_ulid(columns[0][row])} is of another class")
    if query.on_missing == "fail" and missing.any():
        row = int(np.flatnonzero(missing)[0])
        feed = query.tables.info.name
        raise MissingEventError(
            f"feed {feed!r} shard {shard_text(query.shard)}: the row of event {_ulid(columns[0][row])} was "
            f"deleted from {feed!r} after it was fed, {int(missing.sum())} in this batch. Restore the rows, "
            "or export with on_missing='keys_only'",
            feed=feed,
            shard=query.shard,
            ulid=_ulid(columns[0][row]),
        )


def _ulid(value: Any) -> str:
    from airflow_changefeed.core.ulid import Ulid

    return str(Ulid.of_bytes(value.as_py() if isinstance(value, pa.Scalar) else value))


def _column_error(query: RangeQuery, column: Column, what: str) -> ColumnTypeError:
    feed = query.tables.info.name
    return ColumnTypeError(
        f"feed {feed!r} shard {shard_text(query.shard)}: column {column.name!r}, declared "
        f"{column.type or 'without type'!r}, cannot be exported unchanged as {storage_of(column).value}: "
        f"{what}. Correct the value, or declare the column as what it holds",
        feed=feed,
        shard=query.shard,
        column=column.name,
    )


def _named(query: RangeQuery, text: str) -> Exception:
    """
    Give ADBC's error our name.

    It says ``Type mismatch in column 4``, counted from 0 with our first columns.
    """
    prefix = "Type mismatch in column "
    if prefix in text:
        number = int(text.partition(prefix)[2].partition(":")[0])
        return _column_error(query, query.columns[number - _FIRST_COLUMNS], text)
    feed = query.tables.info.name
    if "locked" in text or "busy" in text:
        return LockTimeoutError(f"feed {feed!r}: {text}; retry", feed=feed)
    return SourceUnavailableError(
        f"feed {feed!r} shard {shard_text(query.shard)}: reading failed: {text}", feed=feed
    )
