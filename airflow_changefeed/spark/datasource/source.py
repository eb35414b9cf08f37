# SPDX-License-Identifier: Apache-2.0
"""
The data source ``spark.read.format("changefeed")``: a feed as a frame, without Airflow.

Reads by the same range readers as the export. Spark makes these objects in Python processes of its own, and
hands them on pickled: to plan, and to each task. ``spark.readStream`` is in
:mod:`~airflow_changefeed.spark.datasource.stream`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, cast

from airflow_changefeed.sources import open_source
from airflow_changefeed.spark.datasource.frames import check_columns, feed_columns, read_partition
from airflow_changefeed.spark.datasource.ranges import (
    Piece,
    ReadOptions,
    ShardRange,
    is_stream,
    parse_options,
    plan_partitions,
    resolve,
)
from airflow_changefeed.spark.version_compat import has_filter_pushdown, no_data_sources

try:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
except ImportError:
    raise no_data_sources() from None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from airflow_changefeed.spark.datasource.stream import ChangefeedStreamReader

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


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
        """Stream a partition; see :func:`~airflow_changefeed.spark.datasource.frames.read_partition`."""
        return read_partition(self.options, cast("FeedPartition", partition).value, self.columns)


class _FilteringReader(ChangefeedReader):
    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Narrow the ranges by filters; Spark applies all of them again."""
        from airflow_changefeed.spark.datasource.filters import narrow

        self.ranges = narrow(self.ranges, filters)
        return filters


class ChangefeedDataSource(DataSource):
    """
    Feeds for ``spark.read.format("changefeed")`` and ``spark.readStream``; the options are in
    docs/how-to/read-a-feed-with-spark.md.

    ``load()`` resolves what a batch reads: the same frame gives the same events each time it is computed.
    """

    _has_all_columns = False
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
        :raises ChangefeedError: as :func:`~airflow_changefeed.spark.datasource.ranges.resolve` and the
            source's ``schema`` do.
        """
        # Spark does not say here which of the two it is.
        options = parse_options(self.options, is_stream=is_stream(self.options))
        with closing(open_source(options.connection)) as source:
            columns = feed_columns(source, options)
            if not is_stream(self.options):
                self._ranges = resolve(source, options)
        self._has_all_columns = True
        return columns

    def reader(self, schema: StructType) -> ChangefeedReader:
        """
        Return what reads the columns of a schema.

        :param schema: that of :meth:`schema`, or the user's: some of the columns, in any order.
        :raises ColumnTypeError: a column that the feed does not have, or has in another type.
        """
        options = parse_options(self.options, is_stream=False)
        with closing(open_source(options.connection)) as source:
            check_columns(schema, feed_columns(source, options), options.feed)
            # Spark does not ask for a schema if the user gives one.
            ranges = resolve(source, options) if self._ranges is None else self._ranges
        return self._reader(options, ranges, schema)

    def streamReader(self, schema: StructType) -> ChangefeedStreamReader:
        """
        Return what plans and reads the batches of a query; opens nothing.

        :param schema: as for :meth:`reader`; the query stops if the feed no longer has its columns.
        :raises InvalidArgumentError: options are wrong; all are named.
        """
        from airflow_changefeed.spark.datasource.stream import ChangefeedStreamReader

        options = parse_options(self.options, is_stream=True)
        return ChangefeedStreamReader(options, schema, has_all_columns=self._has_all_columns)


class _FilteringDataSource(ChangefeedDataSource):
    """The same for sessions that pass filters on; Spark refuses such readers in other sessions."""

    _reader = _FilteringReader
