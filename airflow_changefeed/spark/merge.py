# SPDX-License-Identifier: Apache-2.0
"""
What a merge writes into a current table: the rows of changed files, with history if asked, and the job.

The keys of the events are looked for in the table first, in few columns. The files in which some are found
are written again, and all others stay as they are.

With history, the open versions of rows are those that a fold gives. The others come from the events, in the
order of their ULIDs, and from the table.

The job commits nothing: the Airflow task does, so a cluster needs no package of the table's format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.core.feed import counted
from airflow_changefeed.exceptions import own_error
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.export.result import size_text
from airflow_changefeed.formats.base import PlainFile
from airflow_changefeed.lake.current import DELETED_COLUMN, KEEP, VALID_FROM, VALID_TO, CurrentOutput
from airflow_changefeed.lake.fold_plan import FoldSource
from airflow_changefeed.lake.inputs import NEW, OLD
from airflow_changefeed.lake.merge_task import MergedFiles, MergeTask
from airflow_changefeed.sources.base import SHARD_COLUMN, ULID_COLUMN
from airflow_changefeed.spark.fold import (
    SETTINGS,
    changes,
    event_keys,
    failure,
    fold_source,
    numbered,
    partitions,
    session_settings,
)
from airflow_changefeed.spark.fold_events import (
    RECORDING,
    SHARD,
    CapturedEvents,
    SpecialEvents,
    base_rows,
    base_values,
    count_special,
    recorded_rows,
    same_keys,
    shard_type,
    ulid_time,
    versions,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


#: Bytes of a file: what is written aims at the first; where there are many below the second, they are joined.
TARGET, SMALL = 128 << 20, 8 << 20
#: Small files that may stay, and files that are written at the same time although they are below the target.
MOST_SMALL, PARALLEL = 8, 8


def touched(spark: SparkSession, source: FoldSource, files: Sequence[PlainFile]) -> list[PlainFile]:
    """
    Return the files of a table that must be written again: those with rows of changed keys.

    And small ones, where they have become many. All of them, if columns became wider, or rows were recorded
    again.

    :param source: with the table as its base.
    """
    from pyspark.sql import functions

    base = source.base
    found = list(files)
    if base is None or not files:
        return found
    before = base.kinds
    widened = any(before.get(name, kind) != kind for name, kind in source.kinds.items())
    events = CapturedEvents(spark, source)
    special = count_special(events)
    if source.unknown or widened or special.recordings:
        return found
    by_name = {file.path.rpartition("/")[2]: file for file in files}
    if len(by_name) < len(files):
        return found
    there = base_rows(spark, source, base, only_there=False)
    if base.valid_from:
        # Versions that have ended stay as they are.
        there = there.where(functions.col("base_deleted").isNull())
    changed = _changed_keys(source, events, has_moved=special.moved > 0)
    rows = there.join(changed, same_keys(source), "left_semi").select("base_file").distinct().collect()
    names = {row["base_file"] for row in rows}
    small = [name for name, file in by_name.items() if file.size < SMALL]
    if len({*small} - names) >= MOST_SMALL:
        names.update(small)
    return [by_name[name] for name in sorted(names)]


def parts(files: Sequence[PlainFile]) -> int:
    """Return how many files replace some; 0 where that is for Spark to say."""
    size = sum(file.size for file in files)
    return max(-(-size // TARGET), min(PARALLEL, -(-size // (2 * SMALL))))


def merged(spark: SparkSession, source: FoldSource, *, keeps_deleted: bool) -> DataFrame:
    """Return the rows that events give a table, or some files of it; with deleted ones if those are kept."""
    from pyspark.sql import functions

    there = fold_source(spark, source)
    if not keeps_deleted:
        return there
    nothing = functions.lit(None).cast("timestamp").alias(DELETED_COLUMN)
    return there.select("*", nothing).unionByName(_deleted(spark, source))


def _changed_keys(source: FoldSource, events: CapturedEvents, *, has_moved: bool) -> DataFrame:
    keys = [f"key{number}" for number in range(len(source.keys))]
    return changes(events, has_moved=has_moved).select(*keys).distinct()


def known_events(spark: SparkSession, source: FoldSource) -> tuple[CapturedEvents, SpecialEvents]:
    """
    Return the events behind the last recording of the table's rows.

    :raises FoldError: rows were recorded again, so it is unknown when those of before were deleted.
    """
    events = CapturedEvents(spark, source)
    special = count_special(events)
    if special.recordings:
        if source.base is not None and source.base.deleted:
            raise source.refusal(
                "its rows were recorded again, and rows that were deleted before cannot be found. Make "
                "the table again from a later base (base=)"
            )
        # What is before the last reset is in the rows that follow it, or gone without an event.
        events = CapturedEvents(spark, source, recorded_rows(events).resets)
    return events, special


def _deleted(spark: SparkSession, source: FoldSource) -> DataFrame:
    """Return the rows that were deleted: by the events, or before, unless they came back."""
    from pyspark.sql import functions

    events, special = known_events(spark, source)
    rows = events.read([ULID_COLUMN, "type"], list(source.columns), list(source.columns), by_shard=True)
    rows = rows.where(~functions.col("type").isin(*RECORDING, "ddl"))
    last = functions.struct(ULID_COLUMN, "type", SHARD, OLD)
    ends = rows.groupBy(*numbered(event_keys(source))).agg(functions.max_by(last, ULID_COLUMN).alias("last"))
    last = functions.col("last")
    gone = ends.where(last.getField("type") == "del")
    values = {name: last.getField(OLD).getField(name) for name in source.columns}
    found = gone.select(
        *(value.alias(name) for name, value in values.items()),
        last.getField(SHARD).cast(shard_type(source)).alias(SHARD_COLUMN),
        ulid_time(last.getField(ULID_COLUMN)).alias(DELETED_COLUMN),
    )
    if source.base is None or not source.base.deleted:
        return found
    before = base_rows(spark, source, source.base, only_there=False)
    before = before.where(functions.col("base_deleted").isNotNull())
    if source.groups:
        changed = _changed_keys(source, events, has_moved=special.moved > 0)
        before = before.join(changed, same_keys(source), "left_anti")
    kept = before.select(
        *(value.alias(name) for name, value in base_values(source).items()),
        functions.col("base_shard").cast(shard_type(source)).alias(SHARD_COLUMN),
        functions.col("base_deleted").alias(DELETED_COLUMN),
    )
    return kept.unionByName(found)


_PARTLY_RECORDED = (
    "deletes a row whose values no other event has, and deletes do not record all columns. Capture all "
    "columns for deletes, and begin from a snapshot that is taken after that"
)


def all_versions(spark: SparkSession, source: FoldSource) -> DataFrame:
    """
    Return all versions of the rows that a table has, or some files of it.

    :raises FoldError: rows were recorded again, so it is unknown when those of before ended.
    """
    from pyspark.sql import functions

    nothing = functions.lit(None).cast("timestamp")
    found = fold_source(spark, source, with_times=True).select("*", nothing.alias(VALID_TO))
    base = source.base
    events, special = known_events(spark, source)
    own = changes(events, has_moved=special.moved > 0, is_whole=True)
    own = versions(own, len(source.keys))
    row, until = functions.col(NEW), functions.col("until")
    ended = own.where(row.isNotNull() & until.isNotNull())
    found = found.unionByName(
        ended.select(
            *_version(
                source, _values(source, row), SHARD, ulid_time(functions.col("since")), ulid_time(until)
            )
        )
    )
    first = own.where("is_first")
    if special.recordings or (base is not None and base.is_approximate):
        # A row of the base may be older or younger than the first event of its key, which has the row itself.
        before = first.where(~functions.col("adds"))
        at = functions.col(ULID_COLUMN)
        values = _values(source, functions.when(_has_all(source), functions.col(OLD)))
        return found.unionByName(before.select(*_version(source, values, SHARD, nothing, ulid_time(at))))
    if base is None:
        return found
    rows = base_rows(spark, source, base, only_there=False)
    ends = first.select(*(f"key{number}" for number in range(len(source.keys))), ULID_COLUMN)
    is_open = functions.col("base_deleted").isNull()
    rows = rows.join(ends, [*same_keys(source), is_open], "left")
    valid_to = functions.coalesce("base_deleted", ulid_time(functions.col(ULID_COLUMN)))
    of_base = _version(source, base_values(source), "base_shard", functions.col("base_since"), valid_to)
    return found.unionByName(rows.where(valid_to.isNotNull()).select(*of_base))


def _version(
    source: FoldSource, values: Mapping[str, Column], shard: str, valid_from: Column, valid_to: Column
) -> list[Column]:
    from pyspark.sql import functions

    return [
        *(value.alias(name) for name, value in values.items()),
        functions.col(shard).cast(shard_type(source)).alias(SHARD_COLUMN),
        valid_from.alias(VALID_FROM),
        valid_to.alias(VALID_TO),
    ]


def _values(source: FoldSource, row: Column) -> dict[str, Column]:
    return {name: row.getField(name) for name in source.columns}


def _has_all(source: FoldSource) -> Column:
    """Whether an event has all columns of the row before it; the computation fails for one that does not."""
    from pyspark.sql import functions

    captured = source.shape.tables[source.table].columns[Operation.DELETE]
    if all(name in captured for name in source.columns if name not in source.seconds):
        return functions.lit(True)
    broken = failure(source, _PARTLY_RECORDED, functions.col(ULID_COLUMN))
    return functions.when(functions.col("type") == "del", broken).otherwise(functions.lit(True))


def run_merge(
    spark: Callable[[], SparkSession],
    task: MergeTask,
    connection: JobConnection,
    report: Callable[[str], None],
) -> MergedFiles:
    """Write the files that a current table is to have in place of others."""
    source = task.source(connection.storage_options)
    output = CurrentOutput(task.output, task.feed, task.table, connection.storage_options)
    running = spark()
    try:
        with session_settings(running, {**SETTINGS, **partitions(running, source)}):
            replaced = touched(running, source, task.files)
            if task.current is not None:
                source = replace(source, base=output.base(replace(task.current, files=tuple(replaced))))
            if task.history:
                frame = all_versions(running, source)
            else:
                frame = merged(running, source, keeps_deleted=task.deleted == KEEP)
            number = parts(replaced)
            frame = frame.coalesce(number) if number else frame
            url = output.files.url(output.writing(task.attempt))
            frame.write.option("compression", "zstd").parquet(url)
        add = output.written(task.attempt)
    except Exception as error:
        output.discard(task.attempt, task.at)
        raise own_error(error) from error
    report(
        f"changefeed merge: {len(replaced)} of {counted(len(task.files), 'file')} replaced by {len(add)} "
        f"with {counted(sum(file.rows for file in add), 'row')}, {size_text(sum(file.size for file in add))}"
    )
    return MergedFiles(add, tuple(file.path for file in replaced))
