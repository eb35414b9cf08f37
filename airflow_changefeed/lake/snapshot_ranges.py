# SPDX-License-Identifier: Apache-2.0
"""Reading the ranges of a snapshot, one statement and one file each; here, and in tasks of Spark."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from airflow_changefeed.core.codec import Document
from airflow_changefeed.core.export_plan import ExportOptions
from airflow_changefeed.exceptions import TransientError
from airflow_changefeed.export.parquet import ParquetFile, repeating_columns
from airflow_changefeed.lake.snapshots import ReadRange, SnapshotFiles
from airflow_changefeed.output.schemas import schema_text
from airflow_changefeed.sources.arrow import check_schema
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.base_capture import PROTECTED, KeyRange

_COMPRESSION = ExportOptions().compression


@dataclass(frozen=True)
class RangesToRead(Document):
    """
    Ranges of a snapshot that are to be read; what a job of Spark gets, without secrets.

    :param path: root of the output.
    :param ranges: by number.
    :param tasks: that read at the same time.
    :param rows_per_second: of all together; None for no limit.
    :param where: of the part that is read; empty for the whole table.
    """

    KIND = "changefeed snapshot task"

    feed: str
    table: str
    path: str
    token: str
    database: str
    numbers: tuple[int, ...]
    ranges: tuple[KeyRange, ...]
    tasks: int
    rows_per_second: int | None = None
    where: str = ""

    def of_task(self, task: int) -> list[tuple[int, KeyRange]]:
        """Return the ranges of a task, by its number from 0; neighbours go to different tasks."""
        both = zip(self.numbers, self.ranges, strict=True)
        return [one for place, one in enumerate(both) if place % self.tasks == task]


def read_here(
    source: FeedSource,
    files: SnapshotFiles,
    wanted: RangesToRead,
    report: Callable[[ReadRange], None] = lambda found: None,
) -> None:
    """
    Read all ranges in this process, one after the other.

    :param source: open, and left so.
    :param report: takes each range once it counts.
    :raises SnapshotError: the snapshot was given up meanwhile.
    """
    alone = replace(wanted, tasks=1)
    read_ranges(source, files, alone, alone.of_task(0), report)


def read_ranges(
    source: FeedSource,
    files: SnapshotFiles,
    wanted: RangesToRead,
    ranges: Iterable[tuple[int, KeyRange]],
    report: Callable[[ReadRange], None] = lambda found: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """
    Read ranges one after the other; each counts as soon as it is read. Those that others have read are left.

    Each statement is consumed at full speed, as a slow reader holds locks, and pauses are between statements.

    :param source: open, and left so.
    :raises SnapshotError: the snapshot was given up meanwhile.
    """
    rate = None if wanted.rows_per_second is None else wanted.rows_per_second / wanted.tasks
    with ThreadPoolExecutor(1, thread_name_prefix="changefeed-writer") as writer:
        for number, range_ in ranges:
            if files.has_range(wanted.token, number):
                continue
            started = time.monotonic()
            found = _read(source, files, wanted, number, range_, writer)
            report(found)
            if rate is not None:
                sleep(max(0.0, found.rows / rate - (time.monotonic() - started)))


def _read(
    source: FeedSource,
    files: SnapshotFiles,
    wanted: RangesToRead,
    number: int,
    range_: KeyRange,
    writer: Executor,
) -> ReadRange:
    attempt = secrets.token_hex(8)
    path, mark = files.part(wanted.token, number, attempt), f"{number}.{attempt}"
    file: ParquetFile | None = None
    written: Future[None] | None = None
    of = (wanted.feed, wanted.table)
    try:
        with source.marking(*of, token=wanted.token, mark=mark, seconds=PROTECTED):
            columns = source.table_columns(*of)
            schema = columns.schema
            for batch in source.stream_table(*of, range_, where=wanted.where):
                check_schema(batch.schema, schema, wanted.feed)
                if file is None:
                    file = ParquetFile(files.files, path, schema, _COMPRESSION, repeating_columns(batch))
                if written is not None:
                    written.result()
                # While the next batch is read, so that the statement holds its locks no longer.
                written = writer.submit(file.write, batch)
            if written is not None:
                written.result()
            size = file.close() if file is not None else 0
    except BaseException as error:
        if file is not None:
            if written is not None:
                wait([written])
            file.abandon(error)
        raise
    if file is not None and file.upload and not files.files.complete(path, file.upload, size):
        raise TransientError(f"the upload to {path} was aborted; retry", path=path)
    name, rows = (file.name, file.rows) if file is not None else ("", 0)
    found = ReadRange(number, range_, mark, schema_text(schema), columns.version, name, rows, size)
    files.add_range(wanted.token, found)
    return found
