# SPDX-License-Identifier: Apache-2.0
"""
The data source ``spark.read.format("changefeed")``: a feed as a frame, without Airflow.

Reads by the same range readers as the export. Spark makes these objects in Python processes of its own, and
hands them on pickled: to plan, and to each task. A streaming read can be made of :func:`read_pieces` and
:func:`~airflow_changefeed.spark.ranges.plan_partitions`, as the batch read here is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark.sql.types import StructType

from airflow_changefeed.capture.shapes import shaped_batch
from airflow_changefeed.core.feed import INTEGER_SHARD_BITS, counted, shard_text
from airflow_changefeed.core.plan import Shape
from airflow_changefeed.exceptions import ColumnTypeError, IncompleteReadError
from airflow_changefeed.export.planner import check_shape
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.arrow import check_order
from airflow_changefeed.sources.base import SHARD_COLUMN, FeedReader, FeedSource
from airflow_changefeed.spark.ranges import (
    Piece,
    ReadOptions,
    ShardRange,
    parse_options,
    plan_partitions,
    resolve,
)
from airflow_changefeed.spark.read import spark_type
from airflow_changefeed.spark.version_compat import has_filter_pushdown, no_data_sources, utc_arrow_schema

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
except ImportError:
    raise no_data_sources() from None

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import Filter

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
# PySpark's names of types that have other names in SQL.
_TYPE_NAMES = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}


class FeedPartition(InputPartition):
    """What one task reads: pieces, in the order of shard and ULID."""

    value: tuple[Piece, ...]


class ChangefeedReader(DataSourceReader):
    """Plans and reads ranges of shards, with the columns that Spark wants."""

    def __init__(self, options: ReadOptions, ranges: tuple[ShardRange, ...], schema: StructType) -> None:
        self.options = options
        self.ranges = ranges
        self.columns = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Cut the ranges into partitions; changes nothing; raise PurgedError if events of one are purged."""
        options = self.options
        with closing(open_source(options.connection)) as source:
            plan = plan_partitions(source, options.feed, self.ranges, options.partitions)
        # Without a partition Spark makes its own.
        return [FeedPartition(pieces) for pieces in plan or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """
        Stream a partition as Arrow batches, ascending by ULID within each shard.

        :raises PurgedError: events of it were purged since it was planned, or while it was read.
        :raises IncompleteReadError: it gave another number of events than were counted.
        """
        columns = utc_arrow_schema(self.columns)
        # Spark gives a worker process one task at a time, so nobody else here has the source open.
        is_file = self.options.connection["type"] == "sqlite"
        source = open_source(self.options.connection, **({"bulk_reader": "adbc"} if is_file else {}))
        with closing(source):
            yield from read_pieces(source, self.options, cast("FeedPartition", partition).value, columns)


class _FilteringReader(ChangefeedReader):
    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Narrow the ranges by filters; Spark applies all of them again."""
        from airflow_changefeed.spark.filters import narrow

        self.ranges = narrow(self.ranges, filters)
        return filters


class ChangefeedDataSource(DataSource):
    """
    Feeds for ``spark.read.format("changefeed")``; the options are in docs/how-to/read-a-feed-with-spark.md.

    What is read is resolved by ``load()``: the same frame gives the same events each time it is computed.
    """

    _ranges: tuple[ShardRange, ...] | None = None
    _reader: type[ChangefeedReader] = ChangefeedReader

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "changefeed"

    @classmethod
    def register(cls, spark: SparkSession) -> None:
        """
        Make the format known to a session, and let the session hand filters to Python data sources.

        With filters, a ``where`` on time, ULID or shard reads no more of the feed than it lets through. In a
        session that must not, ``spark.dataSource.register(ChangefeedDataSource)`` does without; so does Spark
        before 4.1.
        """
        if not has_filter_pushdown():
            spark.dataSource.register(cls)
            return
        spark.conf.set(_PUSHDOWN, "true")
        spark.dataSource.register(_FilteringDataSource)

    def schema(self) -> StructType:
        """
        Return the columns as Spark reads them of an export, and resolve what is read.

        :raises InvalidArgumentError: options are wrong; all are named, before any I/O.
        :raises ChangefeedError: as :func:`~airflow_changefeed.spark.ranges.resolve` and the source's
            ``schema`` do.
        """
        options = parse_options(self.options)
        with closing(open_source(options.connection)) as source:
            columns = _columns(source, options.feed, options.shape)
            self._ranges = resolve(source, options)
        return columns

    def reader(self, schema: StructType) -> ChangefeedReader:
        """
        Return what reads the columns of a schema.

        :param schema: that of :meth:`schema`, or the user's: some of the columns, in any order.
        :raises ColumnTypeError: a column that the feed does not have, or has in another type.
        """
        options = parse_options(self.options)
        with closing(open_source(options.connection)) as source:
            _check_columns(schema, _columns(source, options.feed, options.shape), options.feed)
            # Spark does not ask for a schema if the user gives one.
            ranges = resolve(source, options) if self._ranges is None else self._ranges
        return self._reader(options, ranges, schema)


class _FilteringDataSource(ChangefeedDataSource):
    """The same for sessions that pass filters on; Spark refuses such readers in other sessions."""

    _reader = _FilteringReader


def read_pieces(
    source: FeedReader, options: ReadOptions, pieces: Sequence[Piece], columns: pa.Schema
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
                yield _converted(batch, piece, columns, options)
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
    batch: pa.RecordBatch, piece: Piece, columns: pa.Schema, options: ReadOptions
) -> pa.RecordBatch:
    feed = options.feed
    batch = shaped_batch(batch, options.shape, feed=feed)
    shard = piece.shard if isinstance(piece.shard, int) else shard_text(piece.shard)
    arrays = []
    for column in columns:
        try:
            if column.name == SHARD_COLUMN:
                arrays.append(pa.repeat(pa.scalar(shard, column.type), batch.num_rows))
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


def _columns(source: FeedSource, feed: str, shape: Shape) -> StructType:
    """Return the columns and their types in Spark: those of the feed as exported, and the shard."""
    columns = _struct(feed, "", check_shape(source, feed, shape))
    is_number = source.feed(feed).shard_key_type in INTEGER_SHARD_BITS
    return columns.add(SHARD_COLUMN, "long" if is_number else "string")


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


def _check_columns(wanted: StructType, columns: StructType, feed: str) -> None:
    kinds = {column.name: column.dataType.simpleString() for column in columns.fields}
    wrong = [
        f"{column.name!r} is {kinds.get(column.name, 'missing')}, not {column.dataType.simpleString()}"
        for column in wanted.fields
        if kinds.get(column.name) != column.dataType.simpleString()
    ]
    if wrong:
        raise ColumnTypeError(
            f"feed {feed!r} does not have the columns of the frame: {'; '.join(wrong)}. If the table "
            "was changed, load() again; if you gave the schema, omit it, or use the table's column "
            "names",
            feed=feed,
            columns=wrong,
        )
