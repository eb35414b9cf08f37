# SPDX-License-Identifier: Apache-2.0
"""
Parts of export units: how a plan is cut into them, how a task writes them, and what the driver gathers.

A task runs on Spark, or in the process that made the plan. It streams a range of the feed into Parquet files,
and checks and sums on the way. Around all tasks of an attempt stands :func:`run_attempt`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_changefeed.capture.shapes import shaped_batch, shaped_schema
from airflow_changefeed.core.codec import decode, encode
from airflow_changefeed.core.feed import Shard, parse_shard, shard_text
from airflow_changefeed.core.plan import ExportOptions, FileFacts, Plan, Shape, combine_checksums
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import IncompleteReadError, InvalidArgumentError, own_error
from airflow_changefeed.export.checksum import checksum
from airflow_changefeed.export.result import ExportResult, ProgressWatch, TaskProgress
from airflow_changefeed.output.attempts import begin, end
from airflow_changefeed.output.commit import Commit, commit_empty
from airflow_changefeed.output.layout import Layout, parse_unit, unit_key
from airflow_changefeed.output.schemas import file_schema, leaves, parse_schema, respelled, schema_text
from airflow_changefeed.output.store import ExportStore, StagedFile, WrittenParts
from airflow_changefeed.sources.arrow import check_order, check_schema
from airflow_changefeed.sources.base import ULID_COLUMN, FeedReader
from airflow_changefeed.storage.files import Files

#: Bytes of Arrow buffers that become one row group; the writer holds about as much again.
ROW_GROUP_BYTES = 64 * 1024 * 1024
#: The first rows, one in this many, decide whether a column's values repeat.
_SAMPLE_PART = 8
#: Rows of one part, unless the options set the number of parts: a few seconds of a task.
PART_ROWS = 500_000
#: Units below this are not split, and tasks not cut smaller: starting one costs more than its rows.
LEAST_PART_ROWS = 20_000
#: A task has no more rows than this and a part; a plan of a hundred million keeps a hundred cores busy.
MOST_TASK_ROWS = 900_000
_LEAST_TASKS = 50
# A part costs as much as this many rows, besides its own.
_PART_COST_ROWS = 500

#: A file's facts, and what completes its upload; empty if it is not uploaded.
WrittenFile = tuple[FileFacts, Mapping[str, Any]]


@dataclass(frozen=True)
class PlannedPart:
    """
    A part of a unit.

    :param unit: number of the unit in the plan, from 0.
    :param rows: estimated.
    :param content: JSON values, all that its task must know.
    """

    unit: int
    rows: int
    content: Mapping[str, Any]


def plan_parts(plan: Plan) -> list[PlannedPart]:
    """Return the parts of all units with rows, those of a shard in their order."""
    parts = []
    for number, planned in enumerate(plan.units):
        for part, range_ in enumerate(planned.parts):
            content = {
                "unit": number,
                "part": part,
                "shard": shard_text(planned.unit.shard),
                "folder": unit_key(planned.unit),
                **encode(range_),
            }
            if plan.names:
                content["names"] = dict(plan.names)
            parts.append(PlannedPart(number, planned.rows // len(planned.parts), content))
    return parts


def cut_tasks(plan: Plan) -> list[list[PlannedPart]]:
    """
    Cut a plan into tasks of about the same cost, the parts of a shard in their order.

    Nothing is asked about the machines, of which a cluster may have two when the job begins, and a hundred a
    minute later. A task has at most about a fiftieth of the rows and of the units, so that any number of
    cores up to that is busy, and a job that is killed has lost little; it has no more rows than a task writes
    in a minute, so that a larger plan keeps more cores busy; and no fewer than are worth a task.
    """
    parts = plan_parts(plan)
    costs = [part.rows + _PART_COST_ROWS for part in parts]
    most_units = -(-len({part.unit for part in parts}) // _LEAST_TASKS)
    aim = min(max(-(-sum(costs) // _LEAST_TASKS), LEAST_PART_ROWS), MOST_TASK_ROWS)
    tasks: list[list[PlannedPart]] = []
    cost_so_far = 0
    units: set[int] = set()
    for part, cost in zip(parts, costs, strict=True):
        is_full = len(units) == most_units and part.unit not in units
        # A task that holds a large part alone ends late, so tasks are cut by the mean, never within a part.
        if not tasks or is_full or cost_so_far + cost / 2 > aim:
            tasks.append([])
            cost_so_far, units = 0, set()
        tasks[-1].append(part)
        cost_so_far += cost
        units.add(part.unit)
    return tasks


def task_name(number: int, task_attempt: int) -> str:
    """Return the name of a task attempt's folder; duplicates and retries have others."""
    return f"{number:05d}-{task_attempt}"


def write_parts(
    source: FeedReader,
    files: Files,
    *,
    feed: str,
    attempt: int,
    options: ExportOptions,
    task: str,
    parts: Iterable[Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    """
    Write parts one after the other, and yield facts as JSON values: the schema, then one for each file.

    :param source: open, and left so.
    :param task: see :func:`task_name`.
    :param parts: the contents of :func:`plan_parts`.
    :raises ChangefeedError: a part cannot be read or written.
    """
    layout = Layout(files.root, feed)
    home = f"{layout.writing(attempt)}/{task}"
    progress = TaskProgress(files, f"{home}/progress.json")
    schema, parts = source.schema(feed), list(parts)
    names = parts[0].get("names", {}) if parts else {}
    yield {"schema": schema_text(_file_columns(schema, options, names, feed))}
    for part in parts:
        shard = parse_shard(part["shard"])
        folder = f"{home}/{part['folder']}"
        if files.has_uploads:
            # Uploads are invisible until they are completed, so they go to their final place.
            unit = parse_unit(shard, part["folder"].rpartition("/")[2])
            if unit is None:
                raise InvalidArgumentError(f"{part['folder']} is not the name of a unit")
            folder = layout.placed(unit, attempt)
        for facts, upload in write_part(
            source,
            files,
            folder,
            schema=schema,
            feed=feed,
            shard=shard,
            range_=decode(UlidRange, part, named="part"),
            part=part["part"],
            options=options,
            names=names,
            progress=partial(progress.add, part["shard"]),
        ):
            path = "" if upload else f"writing/{task}/{part['folder']}/{facts.name}"
            yield encode(StagedFile(part["unit"], path, facts, upload))


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
    names: Mapping[str, str] = MappingProxyType({}),
    progress: Callable[[int, int], None] = lambda rows, size: None,
) -> Iterator[WrittenFile]:
    """
    Write the events of a range to Parquet files, and yield the facts of each as it is finished, and what
    completes its upload.

    :param folder: where the files go; this task's own.
    :param schema: that of ``source.schema(feed)``, asked once for many parts; the files have its columns in
        the shape and the table format of the options.
    :param part: number of the range within its unit, from 0; part of the files' names.
    :param names: of the plan.
    :param progress: called with the rows and bytes of each finished batch.
    :raises IncompleteReadError: the source gave events out of order or outside the range.
    :raises SchemaChangedError: it gives other columns than ``schema``.
    :raises InvalidArgumentError: a shape that the feed's events cannot have.
    """
    written = _file_columns(schema, options, names, feed)
    stream = source.stream(feed, shard, range_, batch_rows=options.batch_rows, on_missing=options.on_missing)
    file: PartFile | None = None
    number, before, last = 0, 0, str(range_.after)
    try:
        for batch in stream:
            check_schema(batch.schema, schema, feed)
            last = check_order(batch, last, range_, feed, shard)
            # JSON needs more space: what becomes JSON at once must fit into Arrow's texts.
            pieces = iter([batch]) if options.shape is Shape.TYPED else bounded(batch)
            # Otherwise it would be held while the source reads the next one; so would each name below.
            del batch
            for piece in pieces:
                rows, offset = _shaped(piece, options, feed, written), 0
                del piece
                while offset < rows.num_rows:
                    if file is None:
                        name = f"part-{part:05d}-{number:05d}.parquet"
                        file = PartFile(files, f"{folder}/{name}", written, options, rows.slice(offset))
                        number, before = number + 1, 0
                    some = rows.slice(offset, options.target_file_rows - file.rows)
                    file.write(some)
                    offset += some.num_rows
                    progress(some.num_rows, file.size - before)
                    before = file.size
                    if file.is_full(options):
                        done, file = (file.finish(), file.upload), None
                        yield done
                    del some
                del rows
        if file is not None:
            done, file = (file.finish(), file.upload), None
            yield done
    except BaseException as error:
        if file is not None:
            file.abandon(error)
        raise
    finally:
        # An abandoned generator would keep its connection until it is collected.
        close = getattr(stream, "close", None)
        if close is not None:
            close()


def _file_columns(
    schema: pa.Schema, options: ExportOptions, names: Mapping[str, str], feed: str
) -> pa.Schema:
    shaped = shaped_schema(schema, options.shape, feed=feed)
    return file_schema(respelled(shaped, names), options.table_format)


def _shaped(batch: pa.RecordBatch, options: ExportOptions, feed: str, written: pa.Schema) -> pa.RecordBatch:
    rows = shaped_batch(batch, options.shape, feed=feed)
    if rows.schema == written:
        return rows
    return pa.RecordBatch.from_arrays(rows.columns, names=written.names).cast(written)


class ParquetFile:
    """A Parquet file that is being written; its first rows say which columns get dictionaries."""

    def __init__(
        self, files: Files, path: str, schema: pa.Schema, compression: str, first: pa.RecordBatch
    ) -> None:
        self.name = path.rpartition("/")[2]
        self.rows = 0
        self._opened: AbstractContextManager[Any] = files.writer(path)
        self._sink = self._opened.__enter__()
        dictionaries: Any = _repeating(first)
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


class PartFile(ParquetFile):
    """A Parquet file of events that is being written."""

    def __init__(
        self, files: Files, path: str, schema: pa.Schema, options: ExportOptions, first: pa.RecordBatch
    ) -> None:
        super().__init__(files, path, schema, options.compression, first)
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


def gather(facts: Iterable[Mapping[str, Any]], task: Iterable[PlannedPart]) -> WrittenParts:
    """Return what a task has written; raise IncompleteReadError if its facts do not fit its parts."""
    units = [part.unit for part in task]
    files: list[StagedFile] = []
    schema: pa.Schema | None = None
    for value in facts:
        if "schema" in value:
            schema = parse_schema(value["schema"], named="a task of the export")
        else:
            files.append(decode(StagedFile, value, named="file of a task"))
    if schema is None:
        raise IncompleteReadError("a task of the export did not report its columns; retry")
    if not {file.unit for file in files} <= set(units):
        raise IncompleteReadError("a task of the export reported files of another task's units; retry")
    return WrittenParts(units, files, schema)


def run_attempt(
    store: ExportStore, plan: Plan, write: Callable[[], Generator[WrittenParts, None, None]]
) -> ExportResult:
    """
    Run a plan: write, commit each unit once all of it is written, and leave nothing behind but what counts.

    Units that were committed before an error or a kill stay: the next try of the task leaves them out.

    :param write: writes all parts, and yields what each task has written as the task ends; not called for a
        plan without rows.
    :raises ChangefeedError: ours, also when it was raised in a task.
    """
    started = time.monotonic()
    begin(store, plan)
    committed = False
    try:
        commit = Commit(store, plan)
        if not plan.is_empty:
            with closing(write()) as written:
                for parts in written:
                    commit.add(parts)
        manifests = commit.finish()
        committed = True
        return ExportResult.of_commit(store, plan, manifests, seconds=time.monotonic() - started)
    except Exception as error:
        raise own_error(error) from error
    finally:
        end(store, plan, committed=committed)


def run_here(
    source: FeedReader, store: ExportStore, plan: Plan, report: Callable[[str], None]
) -> ExportResult:
    """
    Run a plan in this process, one task after the other; for plans without rows, or not worth a Spark.

    :param source: open, and left so. Not one that reads SQLite by ADBC: the process has it open elsewhere,
        too (ADR 0003).
    :param report: takes one line of progress; may be called from another thread.
    :raises ChangefeedError: as :func:`run_attempt`.
    """

    if plan.is_empty:
        # An empty unit also has the feed's columns.
        columns = shaped_schema(source.schema(plan.feed), plan.options.shape, feed=plan.feed)
        manifests = commit_empty(store, plan, respelled(columns, plan.names))
        return ExportResult.of_commit(store, plan, manifests)

    def write() -> Generator[WrittenParts, None, None]:
        with ProgressWatch(store.files, plan, report) as progress:
            for number, task in enumerate(cut_tasks(plan)):
                facts = write_parts(
                    source,
                    store.files,
                    feed=plan.feed,
                    attempt=plan.attempt,
                    options=plan.options,
                    task=task_name(number, 0),
                    parts=[part.content for part in task],
                )
                progress.add(number, written := gather(facts, task))
                yield written

    return run_attempt(store, plan, write)
