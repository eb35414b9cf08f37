# SPDX-License-Identifier: Apache-2.0
"""The statement that reads a SQLite range as Arrow batches, and its streams by Python's ``sqlite3``."""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from airflow_changefeed.core.feed import Column, Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import ColumnTypeError, MissingEventError
from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD, ulid_bytes, ulid_texts, ulid_times
from airflow_changefeed.sources.sqlite.feed.names import (
    FeedTables,
    Storage,
    misfit_condition,
    quote,
    storage_of,
)

ARROW = {
    Storage.INTEGER: pa.int64(),
    Storage.REAL: pa.float64(),
    Storage.TEXT: pa.string(),
    Storage.BLOB: pa.binary(),
}
#: Bytes of a batch, by the largest row of a sample: long values, not many rows, fill a worker's memory.
_BATCH_BYTES = 64 * 1024 * 1024
_SAMPLE_ROWS, _PLACES = 100, 16
_TERMS = 100
#: What SQLite says of a file or a statement.
_NOT_OF_A_ROW = re.compile(r"locked|busy|unable to open|read-?only|disk|interrupt|no such|schema|memory")
_NOT_UTF8 = re.compile(r"Could not decode to UTF-8 column 'c(\d+)'")


def fields_of(columns: Iterable[Column]) -> list[pa.Field]:
    """Return columns as Arrow has them."""
    return [pa.field(column.name, ARROW[storage_of(column)]) for column in columns]


@dataclass(frozen=True, kw_only=True)
class Query(ABC):
    """
    A statement whose rows become Arrow batches: what identifies a row, what is wrong with it, its columns.

    What is wrong is the number of the first column whose value the reader would change, from 1; a negative
    number that :meth:`row_error` knows; or 0. One column says it all, since a column more takes the reader
    longer than all the comparisons.

    :param cuts_fractions: whether its reader would turn 2.5 in a column of integers to 2 without a word.
    """

    #: What the statement gives before its columns: the row's identity, where it has one, and what is wrong.
    FIRST: ClassVar[tuple[str, ...]] = ("u", "x")

    tables: FeedTables
    cuts_fractions: bool = True

    @property
    @abstractmethod
    def columns(self) -> tuple[Column, ...]:
        """The columns, in the order of the statement."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[Any, ...]:
        """The statement's parameters."""

    @property
    @abstractmethod
    def sql(self) -> str:
        """The statement."""

    @property
    @abstractmethod
    def where(self) -> str:
        """What is read, for errors."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """The same, for programs."""

    @abstractmethod
    def batch(self, first: Sequence[Any], columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """
        Put a batch together from the columns of the statement.

        :param first: the columns before them, as the reader has them.
        """

    @abstractmethod
    def row_error(self, wrong: int, identity: Any, rows: int) -> Exception:
        """
        Return the error of a row that is wrong as a whole.

        :param wrong: a negative number.
        :param identity: of the row, if the statement gives one.
        :param rows: how many such rows the batch has.
        """

    @abstractmethod
    def place(self, identity: Any) -> str:
        """Say which row it is, as :meth:`row_error`."""

    def misfits(self, values: Sequence[str], skip: int = 0) -> list[str]:
        """
        Return the cases of columns whose values would be changed.

        :param values: of the first columns, or all.
        :param skip: columns that are ours.
        """
        cases = []
        for number, (column, value) in enumerate(zip(self.columns, values, strict=False)):
            if number < skip:
                continue
            condition = misfit_condition(column, value, cuts_fractions=self.cuts_fractions)
            if condition:
                cases.append(f"when {condition} then {number + 1}")
        return cases

    def selected(self, cases: Sequence[str], values: Sequence[str]) -> str:
        """Return SQL of what is wrong with a row, and of the columns."""
        wrong = f"case {' '.join(cases)} else 0 end" if cases else "0"
        return ", ".join([f"{wrong} as x", *(f"{value} as c{number}" for number, value in enumerate(values))])

    @property
    def size_sql(self) -> str | None:
        """Gives the bytes of the largest of the first rows, and their number; None without a length."""
        sizes = [
            f"coalesce(length(c{number}), 0)"
            for number, column in enumerate(self.columns)
            if storage_of(column) in (Storage.TEXT, Storage.BLOB)
        ]
        # In groups, as SQLite adds up no more than 1,000 terms in a row.
        groups = [" + ".join(sizes[at : at + _TERMS]) for at in range(0, len(sizes), _TERMS)]
        total = " + ".join(f"({group})" for group in groups)
        return f"select max({total}), count(*) from ({self.sql} limit ?)" if sizes else None

    @property
    def elsewhere(self) -> Iterable[tuple[Any, ...]]:
        """The statement's parameters from other places on, where rows may be longer than the first ones."""
        return ()

    def column_error(self, column: Column, what: str) -> ColumnTypeError:
        """Return the error that says what of a column cannot be exported unchanged."""
        return ColumnTypeError(
            f"{self.where}: column {column.name!r}, declared {column.type or 'without type'!r}, cannot "
            f"be exported unchanged as {storage_of(column).value}: {what}. Correct the value, or "
            "declare the column with the type of its values",
            **self.facts,
            column=column.name,
        )


@dataclass(frozen=True, kw_only=True)
class RangeQuery(Query):
    """
    The statement that reads a range of a feed, by ULID; -1 says that the event's row is missing.

    :param range: ``(after, upto]``.
    :param only: columns of the event table, or of a capture's images, that are read; None for all.
    """

    shard: Shard
    range: UlidRange
    on_missing: str
    only: Collection[str] | None = None

    @property
    def columns(self) -> tuple[Column, ...]:
        """The event table's columns, in the order of the statement."""
        return self.tables.info.columns

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the stream: ULID, time, then those of the event table."""
        return pa.schema([ULID_FIELD, TIME_FIELD, *fields_of(self.columns)])

    @property
    def parameters(self) -> tuple[Any, ...]:
        """The statement's parameters."""
        return (self.tables.to_sql(self.shard), self.range.after.bytes, self.range.upto.bytes)

    @property
    def elsewhere(self) -> Iterable[tuple[Any, ...]]:
        """From times on that are evenly spread over the range."""
        begin, upto = self.range.after.ms, self.range.upto
        for number in range(1, _PLACES):
            place = Ulid.floor_milliseconds(begin + number * (upto.ms - begin) // _PLACES)
            if self.range.after < place < upto:
                yield replace(self, range=UlidRange(place, upto)).parameters

    @property
    def sql(self) -> str:
        """The statement; rows in ascending ULID."""
        tables = self.tables
        keys = {column.name for column in tables.info.key_columns}
        if tables.is_serialized:
            values = [self.value("e", column.name) for column in self.columns]
            cases, source = [], f"{tables.table} e"
            ulid = f"e.{tables.ulid}"
        else:
            values = [self.value("f" if column.name in keys else "e", column.name) for column in self.columns]
            joined = " and ".join(f"e.{key} = f.{key}" for key in tables.keys)
            cases = [f"when e.{tables.keys[0]} is null then -1"] if self.on_missing == "fail" else []
            source = f"{tables.feed} f left join {tables.table} e on {joined}"
            ulid = "f.ulid"
        cases += self.misfits(values)
        alias = "e" if tables.is_serialized else "f"
        where = f"{qualified(tables.shard_condition, alias)} and {ulid} > ? and {ulid} <= ?"
        selected = self.selected(cases, values)
        return f"select {ulid} as u, {selected} from {source} where {where} order by {ulid}"

    def value(self, alias: str, column: str, image: str = "") -> str:
        """Return what is selected for a column, which an image of a capture has under its own prefix."""
        is_read = self.only is None or column in self.only
        return f"{alias}.{quote(image + column)}" if is_read else "null"

    @property
    def where(self) -> str:
        return f"feed {self.tables.info.name!r} shard {shard_text(self.shard)}"

    @property
    def facts(self) -> dict[str, Any]:
        return {"feed": self.tables.info.name, "shard": self.shard}

    def batch(self, first: Sequence[Any], columns: Sequence[pa.Array]) -> pa.RecordBatch:
        ids = first[0]
        if isinstance(ids, pa.Array):
            return self.event_batch(ulid_bytes(ids), columns)
        return self.event_batch(np.frombuffer(b"".join(ids), dtype=np.uint8).reshape(-1, 16), columns)

    def event_batch(self, ulids: np.ndarray, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """
        Put a batch together from ULIDs and the columns of the statement.

        :param ulids: uint8, shape (rows, 16).
        """
        return pa.RecordBatch.from_arrays(
            [ulid_texts(ulids), ulid_times(ulids), *columns], schema=self.schema
        )

    def place(self, identity: Any) -> str:
        return f"at ULID {Ulid.of_bytes(identity)}"

    def row_error(self, wrong: int, identity: Any, rows: int) -> Exception:
        feed, ulid = self.tables.info.name, str(Ulid.of_bytes(identity))
        return MissingEventError(
            f"{self.where}: the row of event {ulid} was deleted from {feed!r} after it entered the feed; "
            f"{rows} such rows in this batch. Restore the rows, or export with on_missing='keys_only'",
            **self.facts,
            ulid=ulid,
        )


def bounded_rows(connection: sqlite3.Connection, query: Query, batch_rows: int) -> int:
    """Return the rows of a batch: fewer than asked for where they are so long that memory would run out."""
    if query.size_sql is None:
        return batch_rows
    with _naming_rows(query):
        size, rows = connection.execute(query.size_sql, (*query.parameters, _SAMPLE_ROWS)).fetchone()
        for parameters in query.elsewhere if rows == _SAMPLE_ROWS else ():
            (more, _) = connection.execute(query.size_sql, (*parameters, _SAMPLE_ROWS // 10)).fetchone()
            size = max(size or 0, more or 0)
    return max(1, min(batch_rows, _BATCH_BYTES // max(size or 0, 1)))


def qualified(condition: str, alias: str) -> str:
    """Return the condition of a shard for a table's alias."""
    return condition if condition.startswith("0 ") else f"{alias}.{condition}"


def stream_sqlite3(connection: sqlite3.Connection, query: Query, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Stream by Python's sqlite3, on the connection's present snapshot."""
    with closing(connection.cursor()) as cursor:
        with _naming_rows(query):
            # It computes the first row.
            cursor.execute(query.sql, query.parameters)
        while rows := _fetch(query, cursor, batch_rows):
            columns = list(zip(*rows, strict=True))
            first = columns[: len(query.FIRST)]
            check_rows(query, np.array(first[-1]), first[0])
            arrays = [
                _array(query, column, columns[len(first) + number])
                for number, column in enumerate(query.columns)
            ]
            yield query.batch(first, arrays)


def _fetch(query: Query, cursor: sqlite3.Cursor, rows: int) -> list[Any]:
    with _naming_rows(query):
        return cursor.fetchmany(rows)


@contextmanager
def _naming_rows(query: Query) -> Iterator[None]:
    """Give our name to errors of single rows: a text that is not UTF-8, a generated column that fails."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.DataError) as error:
        if found := _NOT_UTF8.match(str(error)):
            # The text itself is not repeated: it may be anything.
            raise query.column_error(query.columns[int(found[1])], "a text is not valid UTF-8") from None
        if _NOT_OF_A_ROW.search(str(error)):
            raise
        raise ColumnTypeError(
            f"{query.where}: a generated column of a row cannot be computed: {error}. Correct the "
            "values that it is computed from",
            **query.facts,
        ) from None


def _array(query: Query, column: Column, values: tuple[Any, ...]) -> pa.Array:
    try:
        return pa.array(values, type=ARROW[storage_of(column)])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise query.column_error(column, str(error)) from None


def check_rows(query: Query, wrong: np.ndarray, ids: Sequence[Any]) -> None:
    """
    Raise for the first row that is wrong, or holds a value of another class.

    :param wrong: as the statement says it.
    """
    if not wrong.any():
        return
    row = int(np.flatnonzero(wrong)[0])
    number, identity = int(wrong[row]), ids[row]
    identity = identity.as_py() if isinstance(identity, pa.Scalar) else identity
    if number > 0:
        what = f"the value {query.place(identity)} is of another class"
        raise query.column_error(query.columns[number - 1], what)
    raise query.row_error(number, identity, int((wrong < 0).sum()))
