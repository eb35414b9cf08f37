# SPDX-License-Identifier: Apache-2.0
"""The columns of the data source's frames, and how a task reads a partition of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from airflow_changefeed.capture.shapes import shaped_batch
from airflow_changefeed.core.feed import INTEGER_SHARD_BITS, counted, shard_text
from airflow_changefeed.exceptions import ColumnTypeError, IncompleteReadError
from airflow_changefeed.export.planner import check_shape
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.arrow import check_order
from airflow_changefeed.sources.base import SHARD_COLUMN, FeedReader, FeedSource
from airflow_changefeed.spark.datasource.ranges import Piece, ReadOptions
from airflow_changefeed.spark.executors import BULK
from airflow_changefeed.spark.read import spark_type
from airflow_changefeed.spark.version_compat import utc_arrow_schema

#: Column of a stream: no event before this time comes in a later batch.
SEALED_COLUMN = "changefeed_sealed_until"
# PySpark's names of types that have other names in SQL.
_TYPE_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}


def read_partition(
    options: ReadOptions,
    pieces: Sequence[Piece],
    schema: StructType,
    constants: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[pa.RecordBatch]:
    """
    Stream a partition in a task, ascending by ULID within each shard.

    :param schema: the columns of the frame.
    :param constants: columns that have one value in the whole partition.
    :raises PurgedError: events of it were purged since it was planned, or while it was read.
    :raises IncompleteReadError: it gave another number of events than were counted.
    """
    columns = utc_arrow_schema(schema)
    bulk = BULK.get(options.connection["type"], {})
    with closing(open_source(options.connection, **bulk)) as source:
        yield from read_pieces(source, options, pieces, columns, constants)


def read_pieces(
    source: FeedReader,
    options: ReadOptions,
    pieces: Sequence[Piece],
    columns: pa.Schema,
    constants: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[pa.RecordBatch]:
    """
    Stream pieces of a feed one after the other.

    :param columns: what each batch is brought to.
    :raises IncompleteReadError: a piece gave events out of order, or not as many as were counted.
    :raises ColumnTypeError: a column was changed or dropped meanwhile.
    """
    for piece in pieces:
        stream = source.stream(
            options.feed,
            piece.shard,
            piece.range,
            batch_rows=options.batch_rows,
            on_missing=options.on_missing,
        )
        last, rows = str(piece.range.after), 0
        try:
            for batch in stream:
                last = check_order(batch, last, piece.range, options.feed, piece.shard)
                rows += batch.num_rows
                yield _converted(batch, piece, columns, options, constants)
        finally:
            # An abandoned generator would keep its connection until it is collected.
            getattr(stream, "close", lambda: None)()
        if rows != piece.rows:
            raise IncompleteReadError(
                f"feed {options.feed!r}, shard {shard_text(piece.shard)}: ({piece.range.after}, "
                f"{piece.range.upto}] had {counted(piece.rows, 'event')} when it was planned, {rows} "
                "when it was read: history was inserted or rows were deleted meanwhile; read the range "
                "again",
                feed=options.feed,
                shard=piece.shard,
            )


def _converted(
    batch: pa.RecordBatch,
    piece: Piece,
    columns: pa.Schema,
    options: ReadOptions,
    constants: Mapping[str, Any],
) -> pa.RecordBatch:
    feed = options.feed
    batch = shaped_batch(batch, options.shape, feed=feed)
    shard = piece.shard if isinstance(piece.shard, int) else shard_text(piece.shard)
    values = {**constants, SHARD_COLUMN: shard}
    arrays = []
    for column in columns:
        try:
            if column.name in values:
                arrays.append(pa.repeat(pa.scalar(values[column.name], column.type), batch.num_rows))
            else:
                arrays.append(batch.column(column.name).cast(column.type))
        except (KeyError, pa.ArrowException) as problem:
            raise ColumnTypeError(
                f"feed {feed!r}, shard {shard_text(piece.shard)}: column {column.name!r} cannot be read as "
                f"{column.type}: {problem}. If the table was changed, load() again",
                feed=feed,
                shard=piece.shard,
                column=column.name,
            ) from None
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def feed_columns(source: FeedSource, options: ReadOptions) -> StructType:
    """Return a frame's columns and their types in Spark: those of an export, the shard, a stream's seal."""
    feed = options.feed
    columns = _struct(feed, "", check_shape(source, feed, options.shape))
    is_number = source.feed(feed).shard_key_type in INTEGER_SHARD_BITS
    columns.add(SHARD_COLUMN, "long" if is_number else "string")
    return columns if options.position is None else columns.add(SEALED_COLUMN, "timestamp")


def _struct(feed: str, way: str, fields: pa.Schema | pa.StructType) -> StructType:
    """Return columns, or the fields of a struct; without Spark's parser, which a worker does not have."""
    found = StructType()
    for field in fields:
        name = field.name
        if pa.types.is_struct(field.type):
            found.add(name, _struct(feed, f"{way}{name}.", field.type))
            continue
        word = spark_type(way + name, field.type)
        if word.startswith("time("):
            raise ColumnTypeError(
                f"feed {feed!r}: column {way + name!r} holds a time of day, which Spark does not read from a "
                "data source in Python: export the feed, and read the export",
                feed=feed,
                column=way + name,
            )
        found.add(name, _TYPE_NAMES.get(word, word))
    return found


def check_columns(wanted: StructType, columns: StructType, feed: str) -> None:
    """Raise ColumnTypeError unless a feed has the columns of a frame, in the same types."""
    kinds = {column.name: column.dataType.simpleString() for column in columns.fields}
    wrong = [
        f"{column.name!r} is {kinds.get(column.name, 'missing')}, not {column.dataType.simpleString()}"
        for column in wanted.fields
        if kinds.get(column.name) != column.dataType.simpleString()
    ]
    if wrong:
        raise ColumnTypeError(
            f"feed {feed!r} does not have the columns of the frame: {'; '.join(wrong)}. If the table "
            "was changed, load() again; if you gave the schema, omit it, or use the table's column names",
            feed=feed,
            columns=wrong,
        )
