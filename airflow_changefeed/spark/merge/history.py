# SPDX-License-Identifier: Apache-2.0
"""
What a merge writes into a table with history: one row for each version of a row (slowly changing dimension,
type 2), from the event that made it until the event that ended it.

The open versions are those that a fold gives. The others come from the events, in the order of their ULIDs,
and from the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_changefeed.core.capture import Operation
from airflow_changefeed.folding.current import VALID_FROM, VALID_TO
from airflow_changefeed.folding.inputs import NEW, OLD
from airflow_changefeed.folding.plan import FoldSource
from airflow_changefeed.output.read import SHARD_COLUMN
from airflow_changefeed.sources.base import ULID_COLUMN
from airflow_changefeed.spark.folds.base_rows import base_rows, base_values, same_keys, shard_type
from airflow_changefeed.spark.folds.fold import changes, failure, fold_source
from airflow_changefeed.spark.folds.fold_events import SHARD, ulid_time, versions
from airflow_changefeed.spark.merge.rows import known_events

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_PARTLY_RECORDED = (
    "deletes a row whose values no other event has, and deletes do not record all columns. Capture all "
    "columns for deletes, and begin from a snapshot that is taken then"
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
