# SPDX-License-Identifier: Apache-2.0
"""
Streams of a range from SQL Server: Arrow batches of Microsoft's driver, in the exported types.

Nothing is silently rounded, truncated or replaced: where the driver would, the server converts the value
(:mod:`~airflow_changefeed.sources.mssql.feed.mapping`), and texts that the driver may have replaced are
checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import (
    ColumnTypeError,
    IncompleteReadError,
    MissingEventError,
    ReplicaBehindError,
    SchemaChangedError,
)
from airflow_changefeed.sources.arrow import check_schema
from airflow_changefeed.sources.base import ULID_COLUMN
from airflow_changefeed.sources.mssql.capture.query import range_query
from airflow_changefeed.sources.mssql.connection.errors import is_driver_error
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.catalog import call_feed, load_feed
from airflow_changefeed.sources.mssql.feed.mapping import Exported
from airflow_changefeed.sources.mssql.feed.query import MAX_VALUE_BYTES, ArrowQuery, BatchRows, RangeQuery
from airflow_changefeed.sources.shared import check_purged_upto

if TYPE_CHECKING:
    from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed


#: Takes the texts of a column (by its index among the exported ones) in some events; returns the events for
#: which the server has another text, with its UTF-16 bytes.
Recheck = Callable[[int, Mapping[Ulid, str]], Mapping[Ulid, bytes]]

_ULID_BYTES = 16
#: The driver's UTF-8 replacement for half of a surrogate pair; it may also be the actual text.
_REPLACEMENT = "\ufffd"
_RECHECKED_AT_ONCE = 100
#: What servers say where a row's own values fail a computation: 220, 241, 242, 245, 517, 537, 3623, 8114,
#: 8115, 8134, 13609.
_OF_A_ROW = re.compile(
    r"divide by zero|division by zero|arithmetic overflow|conversion failed|error converting data type"
    r"|conversion of a .* resulted in|caused an overflow|invalid length parameter"
    r"|invalid floating point operation|json text is not properly formatted|out of range"
    r"|invalid input syntax",
    re.IGNORECASE,
)


def plan_batches(session: Session, query: ArrowQuery, most: int) -> BatchRows:
    """
    Plan the rows of each batch, so that it fits into memory.

    :param most: rows of a batch.
    :raises ColumnTypeError: a value is too long for memory and Parquet; names the column.
    """
    if not query.large_objects:
        return BatchRows(most, row_bytes=query.most_row_bytes)
    known = []
    for rows, *longest in session.rows(query.sizes_sql, *query.values):
        known.append(int(rows))
        for exported, size in zip(query.large_objects, longest, strict=True):
            if size > MAX_VALUE_BYTES:
                raise ColumnTypeError(
                    f"{query.where}: {exported} holds a value of {size:,} bytes; the longest that can be "
                    f"exported has {MAX_VALUE_BYTES:,}. Store longer values outside the table, with a "
                    "reference in it",
                    column=exported.column.name,
                    **query.facts,
                )
    return BatchRows(most, known, query.most_row_bytes)


def stream(
    session: Session, query: RangeQuery, rows: BatchRows, recheck: Recheck
) -> Iterator[pa.RecordBatch]:
    """
    Stream a range; the connection is busy until the last batch.

    :param recheck: queries on another connection.
    """
    for batch in session.arrow_batches(query.sql, query.values, rows.next):
        rows.learn(batch.num_rows, batch.nbytes)
        yield converted(query, batch, recheck)


@contextmanager
def computed(query: RangeQuery) -> Iterator[None]:
    """
    Give our name to the server's errors about a value of a row, as of a computed column that is not stored.

    :raises ColumnTypeError: instead of the driver's error.
    """
    try:
        yield
    except Exception as error:
        if not (is_driver_error(error) and _OF_A_ROW.search(str(error))):
            raise
        raise ColumnTypeError(
            f"{query.where}: a column of a row cannot be computed: {error}. Correct the values that it "
            "is computed from",
            **query.facts,
        ) from error


def converted(query: RangeQuery, batch: pa.RecordBatch, recheck: Recheck) -> pa.RecordBatch:
    """
    Convert a batch of the driver to the exported columns.

    :raises SchemaChangedError: the driver returned another type than the table's columns have.
    :raises MissingEventError: an event's row is missing, and that is not allowed.
    :raises ColumnTypeError: a text is not valid Unicode.
    """
    check_given(query, batch)
    raw = _ulids(batch.column(0))
    _check_missing(query, raw, batch.column(1))

    def check_text(number: int, column: pa.Array) -> None:
        _check_text(query, number, column, raw, recheck)

    return query.batch(raw, exported_arrays(query, batch, check_text))


def exported_arrays(
    query: ArrowQuery, batch: pa.RecordBatch, check_text: Callable[[int, pa.Array], None]
) -> list[pa.Array]:
    """
    Convert the exported columns of a batch.

    :param check_text: takes the number of a column of texts, and its texts; refuses those that the driver
        has changed.
    """
    arrays = []
    for number, exported in enumerate(query.columns):
        column = batch.column(query.first_columns + number)
        if exported.part.is_text:
            check_text(number, column)
        arrays.append(exported.part.convert(column))
    return arrays


def check_given(query: ArrowQuery, batch: pa.RecordBatch) -> None:
    """
    Check the types of a batch.

    :raises SchemaChangedError: the driver returned another type than the table's columns have.
    """
    given = batch.schema.types[query.first_columns :]
    wrong = [
        f"{exported} arrived as {found}, not as {exported.part.given}"
        for exported, found in zip(query.columns, given, strict=True)
        if found != exported.part.given
    ]
    if wrong:
        raise SchemaChangedError(
            f"{query.where}: {'; '.join(wrong)}. If the table was changed during the read, retry; "
            "otherwise this package does not support this version of mssql-python",
            **query.facts,
        )


def _ulids(column: pa.Array) -> np.ndarray:
    """Return ULIDs as a matrix of bytes, without a copy; they all have the same length."""
    start = column.offset * _ULID_BYTES
    data = np.frombuffer(column.buffers()[2], dtype=np.uint8)
    return data[start : start + len(column) * _ULID_BYTES].reshape(-1, _ULID_BYTES)


def _check_missing(query: RangeQuery, raw: np.ndarray, missing: pa.Array) -> None:
    if query.may_miss_rows:
        return
    flags = np.frombuffer(missing.buffers()[1], dtype=np.int32)[missing.offset :][: len(missing)]
    if not flags.any():
        return
    name = query.feed.name
    ulid = str(Ulid.of_bytes(raw[int(flags.argmax())].tobytes()))
    raise MissingEventError(
        f"{query.where}: the row of event {ulid} was deleted from {name!r} after it entered the feed; "
        f"{int(flags.sum())} such rows in this batch. {query.missing_advice}. If the table has row-level "
        "security, this login must see every row",
        feed=name,
        shard=query.shard,
        ulid=ulid,
    )


def _check_text(query: RangeQuery, number: int, column: pa.Array, raw: np.ndarray, recheck: Recheck) -> None:
    """
    Refuse a text with half of a surrogate pair: UTF-8 cannot represent it, and the driver replaces it
    silently.

    The replacement may also be the actual text, so the server is queried for its bytes.
    """
    waiting = ((Ulid.of_bytes(raw[row].tobytes()), text) for row, text in replaced_texts(column))
    while texts := dict(islice(waiting, _RECHECKED_AT_ONCE)):
        for ulid, value in recheck(number, texts).items():
            try:
                # A row changed meanwhile also differs; either version is valid.
                value.decode("utf-16-le")
            except UnicodeDecodeError:
                raise _text_error(query, query.columns[number], ulid) from None


def replaced_texts(column: pa.Array) -> Iterator[tuple[int, str]]:
    """
    Find the texts in which the driver may have replaced half of a surrogate pair.

    :param column: of the driver.
    :return: row and text.
    """
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, dtype=np.int64)[column.offset : column.offset + len(column) + 1]
    text = data.to_pybytes()[: int(offsets[-1])] if data is not None else b""
    mark = _REPLACEMENT.encode()
    at = text.find(mark, int(offsets[0]))
    while at >= 0:
        row = int(np.searchsorted(offsets, at, side="right")) - 1
        first, last = int(offsets[row]), int(offsets[row + 1])
        yield row, text[first:last].decode()
        at = text.find(mark, last)


def _text_error(query: RangeQuery, exported: Exported, ulid: Ulid) -> ColumnTypeError:
    return ColumnTypeError(
        f"{query.where}: {exported} cannot be exported unchanged: in event {ulid} it holds half of a "
        f"surrogate pair, which is not valid Unicode text. {query.text_advice(exported, ulid)}",
        feed=query.feed.name,
        shard=query.shard,
        column=exported.column.name,
        ulid=str(ulid),
    )


@dataclass
class RangeStream:
    """
    A stream of a range that goes on where it was when its connection is lost.

    That is safe, as nothing is committed any more at or below the bound that it has taken first, and rows
    come in ascending ULID: what follows the last batch is what was not given yet.

    :param range: what is left of it; ``(after, upto]``.
    :param batch_rows: rows of a batch, at most.
    :param columns: of a row, that are read; None for all.
    :param limit: events, at most; None for all, and where the range has been cut.
    """

    database: MssqlDatabase
    feed: str
    shard: Shard
    range: UlidRange
    batch_rows: int
    on_missing: str
    columns: Collection[str] | None = None
    limit: int | None = None
    _begin: Ulid = field(init=False)
    _is_bounded: bool = field(default=False, init=False)
    _schema: pa.Schema | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._begin = self.range.after
        self._bulk = self.database.for_bulk_reads()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """
        Stream what is left.

        :raises ChangefeedError: as :meth:`~airflow_changefeed.sources.base.FeedReader.stream` says.
        """
        if not self.range.is_empty:
            yield from self.database.retry.resume(self._rest, feed=self.feed, shard=self.shard)

    def _rest(self) -> Iterator[pa.RecordBatch]:
        with self._bulk.connect(feed=self.feed, shard=self.shard) as session:
            found = load_feed(session, self._bulk.schema, self.feed, is_fresh=True)
            self._bound(session, found)
            self._cut(session, found)
            query = range_query(found, self.shard, self.range, self.on_missing, self.columns)
            if self._schema is not None:
                check_schema(query.schema, self._schema, self.feed)
            self._schema = query.schema
            if not query.range.is_empty:
                with computed(query):
                    rows = plan_batches(session, query, self.batch_rows)
                    for batch in stream(session, query, rows, self._recheck(query)):
                        self.range = UlidRange(
                            Ulid.parse_text(batch.column(ULID_COLUMN)[-1].as_py()), self.range.upto
                        )
                        yield batch
            # A purge in between would have left rows out (ADR 0005, R12).
            self._next_ulid(session, found, self._begin)

    def _next_ulid(self, session: Session, feed: MssqlFeed, after: Ulid) -> Ulid:
        """Return the lowest ULID that may still be assigned, unless events after a position were purged."""
        ((row,),) = call_feed(session, feed, "shard_bounds", {"shard_id": feed.to_sql(self.shard)})
        check_purged_upto(feed.name, self.shard, after, Ulid.of_bytes(row["purged_upto"]))
        return Ulid.of_bytes(row["next_ulid"])

    def _bound(self, session: Session, feed: MssqlFeed) -> None:
        """Take the bound below which everything is committed; what comes while this reads stays out of it."""
        last = self._next_ulid(session, feed, self.range.after).previous()
        # A secondary that has seen the seal has seen all that was committed before it (ADR 0005, R10). A
        # primary that went back since the bound was taken is one that lost what it had.
        if (self._bulk is not self.database or self._is_bounded) and last < self.range.upto:
            raise ReplicaBehindError(
                f"feed {feed.name!r} shard {shard_text(self.shard)}: the secondary has replicated the "
                f"feed only up to {last}, not {self.range.upto}. Retry; if the secondary stays behind, "
                "check its redo queue, or read from the primary. Events that are not sealed yet can be "
                "read only from the primary",
                feed=feed.name,
                shard=self.shard,
            )
        if not self._is_bounded:
            upto = min(self.range.upto, last)
            self.range = UlidRange(min(self.range.after, upto), upto)
            self._is_bounded = True

    def _cut(self, session: Session, feed: MssqlFeed) -> None:
        """Cut the range behind the events that are asked for, once."""
        if self.limit is None or self.range.is_empty:
            return
        query = range_query(feed, self.shard, self.range, self.on_missing, self.columns)
        sql, values = query.end_sql(self.limit)
        last = [Ulid.of_bytes(ulid) for (ulid,) in session.rows(sql, *values, is_kept=True)]
        self.range = UlidRange(self.range.after, *(last or [self.range.after]))
        self.limit = None

    def _recheck(self, query: RangeQuery) -> Recheck:
        def ask(number: int, texts: Mapping[Ulid, str]) -> dict[Ulid, bytes]:
            def compare(session: Session) -> dict[Ulid, bytes]:
                sql, values = query.differing_sql(number, texts)
                different = {Ulid.of_bytes(ulid): value for ulid, value in session.rows(sql, *values)}
                sql, values = query.present_sql(number, texts)
                ((present,),) = session.rows(sql, *values)
                if present != len(texts):
                    raise IncompleteReadError(
                        f"feed {self.feed!r} shard {shard_text(self.shard)}: rows were deleted or changed "
                        "during the read, so the read cannot be resumed; retry",
                        feed=self.feed,
                        shard=self.shard,
                    )
                return different

            return self._bulk.ask(compare, feed=self.feed, shard=self.shard)

        return ask
