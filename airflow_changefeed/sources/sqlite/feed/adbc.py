# SPDX-License-Identifier: Apache-2.0
"""
Streams of a SQLite range by ADBC's SQLite driver.

It reads about twice as fast as ``sqlite3``, but brings a SQLite of its own: two copies of SQLite that open
one file in one process release each other's POSIX locks (https://www.sqlite.org/howtocorrupt.html, 2.2.1). So
it is used only where the caller knows that nobody else in the process has the file open: in Spark's Python
workers (ADR 0003).
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import adbc_driver_manager
import adbc_driver_sqlite
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcStatement

from airflow_changefeed.core.feed import Column
from airflow_changefeed.exceptions import LockTimeoutError, SourceUnavailableError
from airflow_changefeed.sources.arrow import one_value, whole_numbers
from airflow_changefeed.sources.sqlite.feed.arrow import ARROW, Query, check_rows
from airflow_changefeed.sources.sqlite.feed.names import Storage, storage_of

#: A literal of each type.
_HIGHEST = 2**62
_TYPED = {Storage.INTEGER: "0", Storage.REAL: "0.5", Storage.TEXT: "''", Storage.BLOB: "x''"}


def stream_adbc(
    path: str, query: Query, batch_rows: int, lock_timeout: float
) -> Generator[pa.RecordBatch, None, None]:
    """
    Stream by ADBC; nobody else in this process may have the file open (see the module).

    ADBC takes a column's type from the first batch. Where that is not the declared one, because the batch
    holds nothing but nulls there, the range is read again behind a row that says the types; always to do so
    would cost as much as a fifth of the read.
    """
    uri = f"{Path(path).absolute().as_uri()}?mode=ro"
    try:
        with adbc_driver_sqlite.connect(uri) as database, AdbcConnection(database) as connection:
            _wait_for_locks(connection, lock_timeout)
            with closing(_Reading(connection, query.sql, query.parameters, batch_rows)) as reading:
                if _misread(query, reading.schema) is None:
                    yield from _batches(query, reading.reader, skip=0)
                    return
            with closing(_Reading(connection, _typed_sql(query), query.parameters, batch_rows)) as reading:
                misread = _misread(query, reading.schema)
                if misread is not None:
                    column, found, declared = misread
                    raise query.column_error(column, f"it holds {found} as well as {declared}")
                yield from _batches(query, reading.reader, skip=1)
    except (OSError, adbc_driver_manager.Error, pa.ArrowInvalid) as error:
        raise _named(query, str(error)) from None


class _Reading:
    """
    A statement that runs.

    By ADBC's low-level interface: its DB-API imports pandas and polars, which costs a worker of Spark two
    seconds.
    """

    def __init__(
        self, connection: AdbcConnection, sql: str, parameters: Sequence[Any], batch_rows: int
    ) -> None:
        self._statement = AdbcStatement(connection)
        try:
            option = adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value
            self._statement.set_options(**{option: str(batch_rows)})
            self._statement.set_sql_query(sql)
            self._statement.prepare()
            # To bind no columns crashes the driver.
            if parameters:
                names = [str(number) for number in range(len(parameters))]
                self._statement.bind(pa.RecordBatch.from_arrays([*map(one_value, parameters)], names=names))
            stream, _ = self._statement.execute_query()
            self.reader = pa.RecordBatchReader.from_stream(stream)
        except BaseException:
            self._statement.close()
            raise
        self.schema: pa.Schema = self.reader.schema

    def close(self) -> None:
        """Give back what the statement holds; the stream first, which reads from it."""
        self.reader.close()
        self._statement.close()


def _wait_for_locks(connection: AdbcConnection, seconds: float) -> None:
    with AdbcStatement(connection) as statement:
        statement.set_sql_query(f"pragma busy_timeout = {int(seconds * 1000)}")
        stream, _ = statement.execute_query()
        pa.RecordBatchReader.from_stream(stream).read_all()


def _typed_sql(query: Query) -> str:
    """Return the statement after one row that says each column's type; ``order by`` keeps that row first."""
    literals = ", ".join(_TYPED[storage_of(column)] for column in query.columns)
    has_identity = len(query.FIRST) > 1
    # Lower than any identity, or higher than anything that is wrong.
    first, order = ("x'' as u, 0 as x", "1") if has_identity else (f"{_HIGHEST} as x", "1 desc")
    return f"select {first}, {literals} union all select * from ({query.sql}) order by {order}"


def _misread(query: Query, read: pa.Schema) -> tuple[Column, pa.DataType, pa.DataType] | None:
    """Return the first column that was not read as declared, its type, and the one declared."""
    found = [field.type for field in read][len(query.FIRST) :]
    declared = [ARROW[storage_of(column)] for column in query.columns]
    for column, one, other in zip(query.columns, found, declared, strict=True):
        if one != other:
            return column, one, other
    return None


def _batches(query: Query, reader: pa.RecordBatchReader, *, skip: int) -> Iterator[pa.RecordBatch]:
    """Check batches and give them the feed's columns; the first ``skip`` rows are none of the feed's."""
    for batch in reader:
        rows, skip = batch.slice(skip), max(0, skip - batch.num_rows)
        if not rows.num_rows:
            continue
        first = [rows.column(number) for number in range(len(query.FIRST))]
        check_rows(query, whole_numbers(first[-1]), first[0])
        arrays = [rows.column(len(first) + number) for number in range(len(query.columns))]
        for column, array in zip(query.columns, arrays, strict=True):
            if pa.types.is_string(array.type):
                _check_text(query, column, array)
        yield query.batch(first, arrays)


def _check_text(query: Query, column: Column, array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise query.column_error(column, str(error)) from None


def _named(query: Query, text: str) -> Exception:
    """
    Give ADBC's error our name.

    It says ``Type mismatch in column 4``, counted from 0 with our first columns.
    """
    prefix = "Type mismatch in column "
    if prefix in text:
        number = int(text.partition(prefix)[2].partition(":")[0])
        return query.column_error(query.columns[number - len(query.FIRST)], text)
    if "locked" in text or "busy" in text:
        return LockTimeoutError(f"{query.where}: {text}; retry", **query.facts)
    return SourceUnavailableError(f"{query.where}: reading failed: {text}", **query.facts)
