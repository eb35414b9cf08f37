# SPDX-License-Identifier: Apache-2.0
"""Parquet files that are being written: their row groups, and what an export sums of its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_changefeed.core.export_plan import ExportOptions, FileFacts, combine_checksums
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.export.checksum import checksum
from airflow_changefeed.output.schemas import leaves
from airflow_changefeed.sources.base import ULID_COLUMN
from airflow_changefeed.storage.files import Files

#: Bytes of Arrow buffers that become one row group; the writer holds about as much again.
ROW_GROUP_BYTES = 64 * 1024 * 1024
#: The first rows, one in this many, decide whether a column's values repeat.
_SAMPLE_PART = 8


class ParquetFile:
    """
    A Parquet file that is being written.

    :param repeating: columns that get dictionaries, as :func:`repeating_columns` finds them.
    """

    def __init__(
        self, files: Files, path: str, schema: pa.Schema, compression: str, repeating: list[str]
    ) -> None:
        self.name = path.rpartition("/")[2]
        self.rows = 0
        self._opened: AbstractContextManager[Any] = files.writer(path)
        self._sink = self._opened.__enter__()
        dictionaries: Any = repeating
        codec = "NONE" if compression == "none" else compression
        self._parquet = pq.ParquetWriter(
            self._sink, schema, compression=codec, version="2.6", use_dictionary=dictionaries
        )

    @property
    def size(self) -> int:
        """Bytes so far."""
        return int(self._sink.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows, in row groups of bounded bytes; a row that is larger has one of its own."""
        for batch in bounded(rows):
            self._parquet.write_batch(batch)
            self.rows += batch.num_rows
            self.note(batch)

    def note(self, batch: pa.RecordBatch) -> None:
        """Take note of rows that were written."""

    @property
    def upload(self) -> Mapping[str, Any]:
        """What completes its upload once it is finished; empty if it is not uploaded."""
        return getattr(self._sink, "receipt", {})

    def close(self) -> int:
        """Close the file and return its bytes."""
        self._parquet.close()
        size = self.size
        self._opened.__exit__(None, None, None)
        return size

    def abandon(self, error: BaseException) -> None:
        """Close a file that will not be used."""
        try:
            self._parquet.close()
        finally:
            self._opened.__exit__(type(error), error, error.__traceback__)


def bounded(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut rows into batches of bounded bytes; a row that is larger is one of its own."""
    waiting = [rows]
    while waiting:
        batch = waiting.pop()
        if batch.num_rows > 1 and batch.nbytes > ROW_GROUP_BYTES:
            half = batch.num_rows // 2
            waiting += [batch.slice(half), batch.slice(0, half)]
        else:
            yield batch


def repeating_columns(batch: pa.RecordBatch) -> list[str]:
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


class PartFile(ParquetFile):
    """A Parquet file of events that is being written."""

    def __init__(
        self, files: Files, path: str, schema: pa.Schema, options: ExportOptions, repeating: list[str]
    ) -> None:
        super().__init__(files, path, schema, options.compression, repeating)
        self._checksums: list[int] = []
        self._first: Ulid | None = None
        self._last = Ulid.MIN

    def note(self, batch: pa.RecordBatch) -> None:
        self._checksums.append(checksum(batch))
        ulids = batch.column(ULID_COLUMN)
        self._last = Ulid.parse_text(ulids[-1].as_py())
        self._first = self._first or Ulid.parse_text(ulids[0].as_py())

    def is_full(self, options: ExportOptions) -> bool:
        """Whether the next rows go to another file."""
        return self.rows >= options.target_file_rows or (
            options.target_file_bytes is not None and self.size >= options.target_file_bytes
        )

    def finish(self) -> FileFacts:
        """Close the file and return its facts."""
        size = self.close()
        return FileFacts(
            self.name,
            self.rows,
            size,
            self._first or Ulid.MIN,
            self._last,
            combine_checksums(self._checksums),
        )
