# SPDX-License-Identifier: Apache-2.0
"""
What a merge writes: the rows of those files of a table that events change, folded with the events.

The keys of the events are looked for in the table first, in few columns. The files in which some are found
are written again, and all others stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_changefeed.folding.current import DELETED_COLUMN
from airflow_changefeed.folding.inputs import OLD
from airflow_changefeed.folding.plan import FoldSource
from airflow_changefeed.output.read import SHARD_COLUMN
from airflow_changefeed.sources.base import ULID_COLUMN
from airflow_changefeed.spark.folds.base_rows import base_rows, base_values, same_keys, shard_type
from airflow_changefeed.spark.folds.fold import changes, event_keys, fold_source, numbered
from airflow_changefeed.spark.folds.fold_events import (
    RECORDING,
    SHARD,
    CapturedEvents,
    SpecialEvents,
    count_special,
    recorded_rows,
    ulid_time,
)
from airflow_changefeed.tables.base import PlainFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
    """
    Return the rows that a table has, or some files of it: the state that the events give.

    :param keeps_deleted: whether rows that were deleted stay, with the time in a column more.
    """
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
                "its rows were recorded again, and which of them were deleted before is unknown. Make the "
                "table again from a later base (base=)"
            )
        # What is before the last reset is in the rows that follow it, or gone without an event.
        events = CapturedEvents(spark, source, recorded_rows(events).resets)
    return events, special


def _deleted(spark: SparkSession, source: FoldSource) -> DataFrame:
    """
    Return the rows that were deleted: by the events, or before, unless they came back.

    :raises FoldError: see :func:`known_events`.
    """
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
