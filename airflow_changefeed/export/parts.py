# SPDX-License-Identifier: Apache-2.0
"""
Parts of export units: how a plan is cut into them, how a task writes them, and what the driver gathers.

A task runs on Spark, or in the process that made the plan. It streams a range of the feed into Parquet files,
and checks and sums on the way. Around all tasks of an attempt stands :func:`run_attempt`.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pyarrow as pa

from airflow_changefeed.capture.shapes import shaped_batch, shaped_schema
from airflow_changefeed.core.codec import decode, encode
from airflow_changefeed.core.export_plan import ExportOptions, FileFacts, Plan, Shape
from airflow_changefeed.core.feed import Shard, parse_shard, shard_text
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.exceptions import IncompleteReadError, InvalidArgumentError, own_error
from airflow_changefeed.export.parquet import PartFile, bounded, repeating_columns
from airflow_changefeed.export.result import ExportResult, ProgressWatch, TaskProgress
from airflow_changefeed.output.attempts import begin, end
from airflow_changefeed.output.commit import Commit, commit_empty
from airflow_changefeed.output.layout import Layout, parse_unit, unit_key
from airflow_changefeed.output.schemas import file_schema, parse_schema, respelled, schema_text
from airflow_changefeed.output.store import ExportStore, StagedFile, WrittenParts
from airflow_changefeed.sources.arrow import check_order, check_schema
from airflow_changefeed.sources.base import ULID_COLUMN, FeedReader
from airflow_changefeed.storage.files import Files

#: Rows of one part, unless the options set the number of parts: a few seconds of a task.
PART_ROWS = 500_000
#: Units below this are not split, and tasks not cut smaller: starting one costs more than its rows.
LEAST_PART_ROWS = 20_000
#: A task has no more rows than this and a part; a plan of a hundred million keeps a hundred cores busy.
MOST_TASK_ROWS = 900_000
_LEAST_TASKS = 25
# So few rows of a part say less of its columns than those around them do.
_FEW_ROWS = 4096
# A part costs as much as this many rows, besides its own.
_PART_COST_ROWS = 500


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
            rows = planned.rows // len(planned.parts)
            content = {
                "unit": number,
                "part": part,
                "rows": rows,
                "shard": shard_text(planned.unit.shard),
                "folder": unit_key(planned.unit),
                **encode(range_),
            }
            if plan.names:
                content["names"] = dict(plan.names)
            parts.append(PlannedPart(number, rows, content))
    return parts


def cut_tasks(plan: Plan) -> list[list[PlannedPart]]:
    """
    Cut a plan into tasks of about the same cost, the parts of a shard in their order.

    Nothing is asked about the machines, of which a cluster may have two when the job begins, and a hundred a
    minute later. A task has at most about a twenty-fifth of the rows and of the units, so that any number of
    cores up to that is busy, and a job that is killed has lost little; it has no more rows than a task writes
    in a minute, so that a larger plan keeps more cores busy; and no fewer than are worth a task.
    """
    parts = plan_parts(plan)
    costs = [part.rows + _PART_COST_ROWS for part in parts]
    least = max(_LEAST_TASKS, plan.options.partitions or 0)
    most_units = -(-len({part.unit for part in parts}) // least)
    aim = min(max(-(-sum(costs) // least), LEAST_PART_ROWS), MOST_TASK_ROWS)
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
    written = _file_columns(schema, options, names, feed)
    yield {"schema": schema_text(written)}
    for adjoining in _joined(_part_of(part, files, layout, home, attempt) for part in parts):
        for part, facts, upload in write_adjoining(
            source,
            files,
            adjoining,
            schema=schema,
            written=written,
            feed=feed,
            options=options,
            progress=partial(progress.add, shard_text(adjoining[0].shard)),
        ):
            path = "" if upload else f"writing/{task}/{part.unit_key}/{facts.name}"
            yield encode(StagedFile(part.unit, path, facts, upload))


@dataclass(frozen=True)
class Part:
    """
    A range of a unit's events, and the folder of its files.

    :param number: within the unit, from 0; part of the files' names.
    :param rows: estimated.
    """

    unit: int
    unit_key: str
    number: int
    rows: int
    shard: Shard
    range: UlidRange
    folder: str


def _part_of(content: Mapping[str, Any], files: Files, layout: Layout, home: str, attempt: int) -> Part:
    shard, key = parse_shard(content["shard"]), content["folder"]
    folder = f"{home}/{key}"
    if files.has_uploads:
        # Uploads are invisible until they are completed, so they go to their final place.
        unit = parse_unit(shard, key.rpartition("/")[2])
        if unit is None:
            raise InvalidArgumentError(f"{key} is not the name of a unit")
        folder = layout.placed(unit, attempt)
    range_ = decode(UlidRange, content, named="part")
    return Part(content["unit"], key, content["part"], content["rows"], shard, range_, folder)


def _joined(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """
    Yield small parts together that one read gives: of one shard, each going on where the last one ends.

    A read costs a request, or the opening of a file, and the checks around it: more than an hour of a small
    feed. Large parts are read alone: what one read checks, such as a purge meanwhile, it checks for all.
    """
    joined: list[Part] = []
    for part in parts:
        if joined and (
            (part.shard, part.range.after) != (joined[-1].shard, joined[-1].range.upto)
            or sum(each.rows for each in joined) + part.rows > LEAST_PART_ROWS
        ):
            yield joined
            joined = []
        joined.append(part)
    if joined:
        yield joined


def write_adjoining(
    source: FeedReader,
    files: Files,
    parts: Sequence[Part],
    *,
    schema: pa.Schema,
    written: pa.Schema,
    feed: str,
    options: ExportOptions,
    progress: Callable[[int, int], None] = lambda rows, size: None,
) -> Iterator[tuple[Part, FileFacts, Mapping[str, Any]]]:
    """
    Write parts that one read gives to Parquet files. Yield each file's part and facts as it is finished, and
    what completes its upload; empty if it is not uploaded.

    :param parts: of one shard, in their order, without gaps.
    :param schema: that of ``source.schema(feed)``.
    :param written: the columns of the files.
    :param progress: called with the rows and bytes of each finished batch.
    :raises IncompleteReadError: the source gave events out of order or outside the range.
    :raises SchemaChangedError: it gives other columns than ``schema``.
    :raises InvalidArgumentError: a shape that the feed's events cannot have.
    """
    file: PartFile | None = None
    last, number, before = parts[0], 0, 0
    with closing(_read(source, parts, schema, written, feed, options)) as reading:
        try:
            for part, rows, repeating in reading:
                if part is not last:
                    if file is not None:
                        done, file = (last, file.finish(), file.upload), None
                        yield done
                    last, number = part, 0
                offset = 0
                while offset < rows.num_rows:
                    if file is None:
                        name = f"part-{part.number:05d}-{number:05d}.parquet"
                        file = PartFile(files, f"{part.folder}/{name}", written, options, repeating())
                        number, before = number + 1, 0
                    some = rows.slice(offset, options.target_file_rows - file.rows)
                    file.write(some)
                    offset += some.num_rows
                    progress(some.num_rows, file.size - before)
                    before = file.size
                    if file.is_full(options):
                        done, file = (part, file.finish(), file.upload), None
                        yield done
                # Otherwise they would be held while the source reads the next batch.
                del some, rows, repeating
            if file is not None:
                done, file = (last, file.finish(), file.upload), None
                yield done
        except BaseException as error:
            if file is not None:
                file.abandon(error)
            raise


def _read(
    source: FeedReader,
    parts: Sequence[Part],
    schema: pa.Schema,
    written: pa.Schema,
    feed: str,
    options: ExportOptions,
) -> Generator[tuple[Part, pa.RecordBatch, Callable[[], list[str]]], None, None]:
    """Read adjoining parts at once; yield rows of each, and what finds their repeating columns."""
    shard, range_ = parts[0].shard, UlidRange(parts[0].range.after, parts[-1].range.upto)
    stream = source.stream(feed, shard, range_, batch_rows=options.batch_rows, on_missing=options.on_missing)
    waiting, last = iter(parts), str(range_.after)
    part = next(waiting)
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
                # Once for many small files, and not at all for a batch in which none begins.
                of_all = cache(partial(repeating_columns, rows))
                del piece
                while offset < rows.num_rows:
                    end = _end(rows, offset, part, last)
                    if end > offset:
                        some = rows.slice(offset, end - offset)
                        repeating = partial(repeating_columns, some) if end - offset > _FEW_ROWS else of_all
                        yield part, some, repeating
                        del some, repeating
                    if end < rows.num_rows:
                        part = next(waiting)
                    offset = end
                del rows, of_all
    finally:
        # An abandoned generator would keep its connection until it is collected.
        close = getattr(stream, "close", None)
        if close is not None:
            close()


def _end(rows: pa.RecordBatch, offset: int, part: Part, last: str) -> int:
    """Return where a part's rows end in a batch."""
    upto = str(part.range.upto)
    if last <= upto:
        return int(rows.num_rows)
    ulids = rows.column(ULID_COLUMN)
    return bisect_right(range(rows.num_rows), upto, lo=offset, key=lambda row: ulids[row].as_py())


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
