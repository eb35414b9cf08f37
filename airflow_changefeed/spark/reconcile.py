# SPDX-License-Identifier: Apache-2.0
"""Compares two folds of one table at one time, row by row and value by value; and the job that does so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING

from airflow_changefeed.core.values import format_time
from airflow_changefeed.exceptions import ReconcileError, own_error
from airflow_changefeed.export.job_spec import JobConnection
from airflow_changefeed.lake.fold_plan import FoldSource
from airflow_changefeed.lake.reconcile import ReconcileTask, find_sides
from airflow_changefeed.lake.reconciliation import MOST_NAMED, Comparison, Difference
from airflow_changefeed.output.schemas import wider_type
from airflow_changefeed.spark.fold import SETTINGS, UNKNOWN, fold_source, session_settings
from airflow_changefeed.spark.fold_events import is_in_part
from airflow_changefeed.spark.read import quoted, spark_type

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession


_KINDS = ("missing", "extra", "different")
_TABLE, _LAKE = "table", "lake"


def compare(spark: SparkSession, table: FoldSource, lake: FoldSource) -> Comparison:
    """
    Compare a table, folded from a reading of it, with the rows that another base and the events give.

    One pass without a join finds by checksums whether anything differs; only then others find which rows.

    :raises FoldError: one of them cannot be folded.
    :raises ReconcileError: they have other columns.
    """
    from pyspark.sql import Window, functions

    kinds = _kinds(table, lake)
    keys = [name for name in kinds if name in table.keys or name in lake.keys]
    frames = [_numbered(fold_source(spark, table), table, kinds, _TABLE)]
    believed = fold_source(spark, lake, is_tolerant=True)
    if table.base is not None and table.base.where:
        believed = believed.where(is_in_part(lake, table.base, [believed[quoted(key)] for key in lake.keys]))
    frames.append(_numbered(believed, lake, kinds, _LAKE))
    base = "the beginning of the capture" if lake.base is None else lake.base.what
    one, other = _checksums(frames, kinds)
    if one == other:
        return Comparison(base, one[0])
    own = table.shape.tables[table.table].key_columns
    # Plainly, as the fold does: captured keys are never null, their second columns may be.
    pairs = [[functions.col(f"{side}{number}") for side in (_TABLE, _LAKE)] for number in range(len(kinds))]
    same = [
        one == other if name in own else one.eqNullSafe(other)
        for name, (one, other) in zip(kinds, pairs, strict=True)
        if name in keys
    ]
    differing = {
        name: ~_is_same(kind, *pair) for (name, kind), pair in zip(kinds.items(), pairs, strict=True)
    }
    # A row that the lake has twice is compared once, and the others are extra.
    numbers = [functions.col(f"{_LAKE}{number}") for number, name in enumerate(kinds) if name in keys]
    copies = Window.partitionBy(*numbers).orderBy(*numbers)
    frames[1] = frames[1].withColumn("copy", functions.row_number().over(copies))
    both = frames[0].join(frames[1], [*same, functions.col("copy") == 1], "full_outer")
    kind = (
        functions.when(functions.col(_LAKE).isNull() | functions.col(_LAKE), _KINDS[0])
        .when(functions.col(_TABLE).isNull(), _KINDS[1])
        .when(reduce(lambda one, other: one | other, differing.values()), _KINDS[2])
    )
    counts = [functions.count_if(functions.col("kind") == one) for one in _KINDS]
    (found,) = both.select(_TABLE, kind.alias("kind")).agg(functions.count(_TABLE), *counts).collect()
    rows, missing, extra, different = found
    named: tuple[Difference, ...] = ()
    if missing + extra + different:
        named = _named(both.withColumn("kind", kind), table, kinds, keys, differing)
    return Comparison(base, rows, missing, extra, different, named)


def _kinds(table: FoldSource, lake: FoldSource) -> dict[str, pa.DataType]:
    """Return a type for each column that holds the values of both, second columns of one of them, too."""
    columns = [[name for name in one.columns if name not in one.seconds] for one in (table, lake)]
    if set(columns[0]) != set(columns[1]):
        raise ReconcileError(
            f"table {table.table!r} was read with the columns {', '.join(columns[0])}, and its export "
            f"has {', '.join(columns[1])} then: its columns were changed meanwhile. Compare again when "
            "the change has been exported",
            feed=table.store.feed,
            table=table.table,
        )
    kinds: dict[str, pa.DataType] = {}
    for name in (*table.columns, *lake.columns):
        both = [one.kinds[name] for one in (table, lake) if name in one.kinds]
        kind = wider_type(both[0], both[-1])
        if kind is None:
            raise ReconcileError(
                f"column {name!r} of table {table.table!r} was read as {both[0]}, and its export has "
                f"{both[1]}: no type holds the values of both. Take a snapshot, and compare with that "
                "snapshot from then on",
                feed=table.store.feed,
                table=table.table,
                column=name,
            )
        kinds[name] = kind
    return kinds


def _numbered(rows: DataFrame, source: FoldSource, kinds: Mapping[str, pa.DataType], side: str) -> DataFrame:
    """Return numbered columns, and one that is there for each row: whether it is unknown."""
    from pyspark.sql import functions

    values = [
        (rows[quoted(name)] if name in source.columns else functions.lit(None))
        .cast(spark_type(name, kind))
        .alias(f"{side}{number}")
        for number, (name, kind) in enumerate(kinds.items())
    ]
    is_unknown = rows[UNKNOWN] if UNKNOWN in rows.columns else functions.lit(False)
    return rows.select(*values, is_unknown.alias(side))


def _checksums(frames: Sequence[DataFrame], kinds: Mapping[str, pa.DataType]) -> list[tuple[int, ...]]:
    """
    Return of each side how many rows it has, two checksums of all values, and how many rows are unknown.

    They do not depend on the order of rows. Each checksum has 64 bits: two sides that differ have the same
    ones once in 2**128. To join the rows instead costs nearly twice as much.
    """
    import pyarrow as pa
    from pyspark.sql import functions

    sums = []
    for frame, side in zip(frames, (_TABLE, _LAKE), strict=True):
        parts = []
        for number, kind in enumerate(kinds.values()):
            value = functions.col(f"{side}{number}")
            # Hashes leave nulls out, and take 0.0 and -0.0 for equal.
            parts += [value, value.isNull()]
            if pa.types.is_floating(kind):
                parts.append(functions.when(value == 0, value.cast("string")))
        hashes = [functions.xxhash64(functions.lit(seed), *parts) for seed in (1, 2)]
        # Not their sums, which overflow: no row is there twice unless another one lacks.
        sums.append(
            frame.agg(
                functions.count(side),
                *(functions.bit_xor(one) for one in hashes),
                functions.count_if(side),
                functions.lit(side).alias("side"),
            )
        )
    found = {row["side"]: row[:-1] for row in sums[0].union(sums[1]).collect()}
    return [found[_TABLE], found[_LAKE]]


def _is_same(kind: pa.DataType, one: Column, other: Column) -> Column:
    """Whether two values are the same; Spark takes 0.0 and -0.0 for equal, which are stored differently."""
    import pyarrow as pa
    from pyspark.sql import functions

    same = one.eqNullSafe(other)
    if pa.types.is_floating(kind):
        return functions.when(one == 0, one.cast("string").eqNullSafe(other.cast("string"))).otherwise(same)
    return same


def _named(
    both: DataFrame,
    table: FoldSource,
    kinds: Mapping[str, pa.DataType],
    keys: list[str],
    differing: Mapping[str, Column],
) -> tuple[Difference, ...]:
    import pyarrow as pa
    from pyspark.sql import functions

    shown = []
    for number, (name, kind) in enumerate(kinds.items()):
        if name in keys:
            value = functions.coalesce(*(functions.col(f"{side}{number}") for side in (_TABLE, _LAKE)))
            is_binary = "binary" in str(kind) or pa.types.is_fixed_size_binary(kind)
            shown.append((value, functions.hex(value) if is_binary else value.cast("string")))
    columns = functions.array(*(functions.when(one, functions.lit(name)) for name, one in differing.items()))
    found = (
        both.where(functions.col("kind").isNotNull())
        .orderBy(*(value for value, _ in shown))
        .limit(MOST_NAMED)
        .select("kind", functions.array(*(text for _, text in shown)), columns)
    )
    return tuple(
        Difference(
            kind,
            dict(zip(keys, values, strict=True)),
            # A second column is a part of its column's value.
            tuple(dict.fromkeys(table.seconds.get(name, name) for name in names if name is not None))
            if kind == _KINDS[2]
            else (),
        )
        for kind, values, names in found.collect()
    )


#: Times in keys are the database's own, or UTC.
_SETTINGS = {**SETTINGS, "spark.sql.session.timeZone": "UTC"}


def run_comparison(
    spark: Callable[[], SparkSession],
    task: ReconcileTask,
    connection: JobConnection,
    report: Callable[[str], None],
) -> Comparison:
    """Compare what was read of a table with what its export gives at that time."""
    table, lake = find_sides(task, connection.storage_options)
    since = "the beginning" if lake.base is None else lake.base.what
    report(
        f"changefeed reconcile: table {task.table} of feed {task.feed} at {format_time(table.at)} with its "
        f"export from {since} on"
    )
    running = spark()
    try:
        with session_settings(running, _SETTINGS):
            return compare(running, table, lake)
    except Exception as error:
        raise own_error(error) from error
