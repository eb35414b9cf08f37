# SPDX-License-Identifier: Apache-2.0
"""
Writes one part of an export unit: streams a range of a feed into Parquet files, checking and summing on the
way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_changefeed.capture.shapes import shaped_batch, shaped_schema
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.manifest import FileFacts, combine_checksums
from airflow_changefeed.core.plan import ExportOptions, Shape
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.export.batch_order import check_order
from airflow_changefeed.output.structs import leaves
from airflow_changefeed.sources.arrow import check_schema
from airflow_changefeed.sources.base import ULID_COLUMN, FeedReader
from airflow_changefeed.storage.files import Files
from airflow_changefeed.verify.checksum import checksum

#: Bytes of Arrow buffers that become one row group; the writer holds about as much again.
ROW_GROUP_BYTES = 64 * 1024 * 1024


#: Part of the first rows by which it is told whether a column's values repeat.
_SAMPLE_PART = 8

#: A file's facts, and what completes its upload; nothing where it is not uploaded.
WrittenFile = tuple[FileFacts, Mapping[str, Any]]


class _OpenFile:
    """A Parquet file that is being written."""

    def __init__(
        self, files: Files, path: str, schema: pa.Schema, compression: str, first: pa.RecordBatch
    ) -> None:
        self.name = path.rpartition("/")[2]
        self.rows = 0
        self._checksums: list[int] = []
        self._first: Ulid | None = None
        self._last = Ulid.MIN
        self._opened: AbstractContextManager[Any] = files.writer(path)
        self._sink = self._opened.__enter__()
        dictionaries: Any = _repeating(first)
        self._parquet = pq.ParquetWriter(
            self._sink, schema, compression=compression, version="2.6", use_dictionary=dictionaries
        )

    @property
    def size(self) -> int:
        """Bytes so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows, in row groups of bounded bytes; a row that is larger has one of its own."""
        for batch in _bounded(rows):
            self._write_group(batch)

    def _write_group(self, batch: pa.RecordBatch) -> None:
        self._parquet.write_batch(batch)
        self._checksums.append(checksum(batch))
        self.rows += batch.num_rows
        ulids = batch.column(ULID_COLUMN)
        self._last = Ulid.parse_text(ulids[-1].as_py())
        self._first = self._first or Ulid.parse_text(ulids[0].as_py())

    @property
    def upload(self) -> Mapping[str, Any]:
        """What completes its upload once it is finished; nothing where it is not uploaded."""
        return getattr(self._sink, "receipt", {})

    def finish(self) -> FileFacts:
        """Close the file and say what is in it."""
        self._parquet.close()
        size = self.size
        self._opened.__exit__(None, None, None)
        return FileFacts(
            self.name,
            self.rows,
            size,
            self._first or Ulid.MIN,
            self._last,
            combine_checksums(self._checksums),
        )

    def abandon(self, error: BaseException) -> None:
        """Close a file that will not be used."""
        try:
            self._parquet.close()
        finally:
            self._opened.__exit__(type(error), error, error.__traceback__)


def _bounded(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows into batches of bounded bytes; a row that is larger is one of its own."""
    waiting = [rows]
    while waiting:
        batch = waiting.pop()
        if batch.num_rows > 1 and batch.nbytes > ROW_GROUP_BYTES:
            half = batch.num_rows // 2
            waiting += [batch.slice(half), batch.slice(0, half)]
        else:
            yield batch


def _repeating(batch: pa.RecordBatch) -> list[str]:
    """
    Return the columns, and the leaves of structs, whose values repeat, by the first rows.

    A dictionary of values that do not repeat makes files larger, and looking for repetitions that are not
    there took a third of the writing.
    """
    rows = batch.slice(0, batch.num_rows // _SAMPLE_PART)
    columns = zip(rows.schema.names, rows.columns, strict=True)
    return [
        path
        for name, column in columns
        for path, values in leaves(name, column)
        if len(values.unique()) <= rows.num_rows / 2
    ]


def write_part(
    source: FeedReader,
    files: Files,
    folder: str,
    *,
    schema: pa.Schema,
    feed: str,
    shard: Shard,
    range_: UlidRange,
    part: int,
    options: ExportOptions,
    progress: Callable[[int, int], None] = lambda rows, size: None,
) -> Iterator[WrittenFile]:
    """
    Write the events of a range to Parquet files, and yield the facts of each as it is finished, and what
    completes its upload.

    :param folder: where the files go; this task's own.
    :param schema: that of ``source.schema(feed)``, asked once for many parts; the files have its columns in
        the shape of the options.
    :param part: number of the range within its unit, from 0; part of the files' names.
    :param progress: called with the rows and bytes of each finished batch.
    :raises IncompleteReadError: the source gave events out of order or outside the range.
    :raises SchemaChangedError: it gives other columns than ``schema``.
    :raises InvalidArgumentError: a shape that the feed's events cannot have.
    """
    written = shaped_schema(schema, options.shape, feed=feed)
    stream = source.stream(feed, shard, range_, batch_rows=options.batch_rows, on_missing=options.on_missing)
    file: _OpenFile | None = None
    number, before = 0, 0
    try:
        for batch in _shaped(_checked(stream, schema, feed, shard, range_), options.shape, feed):
            offset = 0
            while offset < batch.num_rows:
                if file is None:
                    name = f"part-{part:05d}-{number:05d}.parquet"
                    file = _open(files, f"{folder}/{name}", written, options, batch.slice(offset))
                    number, before = number + 1, 0
                piece = batch.slice(offset, options.target_file_rows - file.rows)
                file.write(piece)
                offset += piece.num_rows
                progress(piece.num_rows, file.size - before)
                before = file.size
                if _is_full(file, options):
                    done, file = (file.finish(), file.upload), None
                    yield done
                del piece
            # Or it would be held while the source reads the next one.
            del batch
        if file is not None:
            done, file = (file.finish(), file.upload), None
            yield done
    except BaseException as error:
        if file is not None:
            file.abandon(error)
        raise
    finally:
        # A generator that is left behind would keep its connection until it is collected.
        close = getattr(stream, "close", None)
        if close is not None:
            close()


def _checked(
    stream: Iterable[pa.RecordBatch], schema: pa.Schema, feed: str, shard: Shard, range_: UlidRange
) -> Iterator[pa.RecordBatch]:
    """Yield batches that have the right columns, and rows in order."""
    last = str(range_.after)
    for batch in stream:
        check_schema(batch.schema, schema, feed)
        last = check_order(batch, last, range_, feed, shard)
        yield batch
        del batch


def _shaped(batches: Iterator[pa.RecordBatch], shape: Shape, feed: str) -> Iterator[pa.RecordBatch]:
    """Bring rows into a shape; JSON takes more room, and no more than Arrow's texts have at once."""
    if shape is Shape.TYPED:
        yield from batches
        return
    for batch in batches:
        pieces = _bounded(batch)
        del batch
        for rows in pieces:
            yield shaped_batch(rows, shape, feed=feed)


def _open(
    files: Files, path: str, schema: pa.Schema, options: ExportOptions, first: pa.RecordBatch
) -> _OpenFile:
    compression = "NONE" if options.compression == "none" else options.compression
    return _OpenFile(files, path, schema, compression, first)


def _is_full(file: _OpenFile, options: ExportOptions) -> bool:
    return file.rows >= options.target_file_rows or (
        options.target_file_bytes is not None and file.size >= options.target_file_bytes
    )
