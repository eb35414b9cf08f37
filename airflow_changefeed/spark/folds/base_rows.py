# SPDX-License-Identifier: Apache-2.0
"""The rows that a fold starts from, and how the changes of a table are matched with them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.folding.bases import Base
from airflow_changefeed.folding.plan import FoldSource
from airflow_changefeed.output.read import SHARD_COLUMN
from airflow_changefeed.spark.read import ddl, quoted, read_parquet, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_COMPARISONS = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def base_rows(
    spark: SparkSession,
    source: FoldSource,
    base: Base,
    resets: Mapping[Shard, str] = MappingProxyType({}),
    *,
    only_there: bool = True,
) -> DataFrame:
    """
    Return the rows of the base, the columns numbered, with their shards; not those of shards with a reset.

    Columns by the fields of the events, as a column that was renamed is another one for them. And
    ``base_since``, the time since when the row is as it is; null if unknown.

    :param only_there: whether rows that were deleted are left out. Else there are columns more:
        ``base_deleted``, null in the others, and ``base_file``, the name of the row's file.
    """
    from pyspark.sql import functions

    from airflow_changefeed.spark.version_compat import file_name

    names = {place: name for name, place in base.facts.fields.items()}
    columns = f"{ddl(base.kinds)}, {SHARD_COLUMN} {shard_type(source)}"
    columns += "".join(f", {quoted(name)} timestamp" for name in (base.deleted, base.valid_from) if name)
    # A table may have no files.
    frame = read_parquet(spark, columns, base.paths) if base.paths else spark.createDataFrame([], columns)
    shard = functions.col(SHARD_COLUMN)
    deleted, since = (
        functions.col(name) if name else functions.lit(None).cast("timestamp")
        for name in (base.deleted, base.valid_from)
    )
    if base.deleted and only_there:
        frame = frame.where(deleted.isNull())
    if resets:
        frame = frame.where(~shard.cast("string").isin([shard_text(one) for one in resets]))
    values = [
        (functions.col(quoted(names[place])) if place in names else functions.lit(None))
        .cast(spark_type(name, source.kinds[name]))
        .alias(f"base{number}")
        for number, (name, place) in enumerate(source.columns.items())
    ]
    own = [*values, shard.alias("base_shard"), since.alias("base_since")]
    if only_there:
        return frame.select(*own)
    file = file_name(frame) if base.paths else functions.lit("")
    more = [deleted.alias("base_deleted"), file.alias("base_file")]
    return frame.select(*own, *more)


def base_values(source: FoldSource) -> dict[str, Column]:
    """Return the columns of a table in what :func:`base_rows` returns."""
    from pyspark.sql import functions

    return {name: functions.col(f"base{number}") for number, name in enumerate(source.columns)}


def same_keys(source: FoldSource) -> list[Column]:
    """Compare the keys of changes with those of a base's rows."""
    from pyspark.sql import functions

    values = base_values(source)
    pairs = [(functions.col(f"key{number}"), values[name]) for number, name in enumerate(source.keys)]
    # A key's second column is null where files have none. Keys are never null, and plainly compared faster.
    captured = len(source.shape.tables[source.table].key_columns)
    same = [key == own for key, own in pairs[:captured]]
    return same + [key.eqNullSafe(own) for key, own in pairs[captured:]]


def is_in_part(source: FoldSource, base: Base, keys: Sequence[Column]) -> Column:
    """
    Whether a key is in the part of the table that a base has; also if it is null, which fails later.

    No key moves into the part or out of it by an update: that is a delete and an insert.
    """
    from pyspark.sql import functions

    # A column that was renamed since keeps its field.
    names = {place: name for name, place in source.columns.items()}
    found = functions.lit(True)
    for one in base.conditions:
        name = names[base.facts.fields[one.column]]
        key, value = keys[source.keys.index(name)], functions.lit(one.value)
        compare = _COMPARISONS[one.operator]
        found &= compare(key, value.cast(spark_type(name, source.kinds[name])))
    return functions.coalesce(found, functions.lit(True))


def shard_type(source: FoldSource) -> str:
    """Return Spark's type of a source's shards."""
    return "bigint" if source.has_integer_shards else "string"
