# SPDX-License-Identifier: Apache-2.0
"""Reads an export into Spark by its manifests only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ColumnTypeError
from airflow_changefeed.output.read import UnitFile, select
from airflow_changefeed.output.schemas import leaf_types, same_names, wider_type
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import SHARD_COLUMN, ULID_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_SPARK_TYPES = {
    "bool": "boolean",
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "uint8": "smallint",
    "uint16": "int",
    "uint32": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
    "time64[us]": "time(6)",
}
#: Without this setting Spark refuses files with a column of time, even if it is not selected.
_TIME_TYPE = "spark.sql.timeType.enabled"
_GLOB = re.compile(r"([\\{}\[\]*?])")


def read_export(
    spark: SparkSession,
    path: str,
    feed: str,
    start: datetime | None = None,
    end: datetime | None = None,
    shards: Iterable[Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    incomplete: str = "fail",
    unify_schemas: bool = False,
) -> DataFrame:
    """
    Read the complete units of an export, and of them the events of an interval.

    Finds its files when it is called, not when the frame is computed: read again after units were exported
    again, or the output was cleaned up; Spark says then that a file does not exist. Without Spark:
    :func:`~airflow_changefeed.output.dataset.export_dataset`.

    :param path: root of the export, a local path or an fsspec URL.
    :param start: inclusive feed time with a zone; None begins with each shard's first unit.
    :param end: exclusive feed time; None ends with each shard's last unit.
    :param shards: None for all.
    :param storage_options: for the manifests, through fsspec; Spark reads the files by its own settings.
    :param incomplete: ``fail`` where a part of the interval was not exported, or ``read`` what is there.
    :param unify_schemas: whether a column that some units lack is null there, and a type that was widened
        counts for all; False refuses columns that changed.
    :return: the columns as exported, and the shard as ``changefeed_shard`` (bigint, or string for UUIDs; an
        output without any unit says bigint).
    :raises ManifestError: nothing was exported there, the interval is not complete, a manifest is damaged, or
        names a file that is gone, or units overlap.
    :raises ColumnTypeError: the columns changed between units, or Spark does not have a type.
    """
    store = ExportStore(path, feed, storage_options)
    chosen = select(store, start, end, shards, incomplete=incomplete, unify_schemas=unify_schemas)
    kinds = {column.name: column.type for column in chosen.schema}
    if spark.conf.get("spark.sql.caseSensitive", "false") != "true":
        kinds = _in_one_case(kinds, same_names(file.manifest for file in chosen.files))
    check_times(spark, kinds)
    columns = ddl(kinds)
    from pyspark.sql import functions

    kind = "bigint" if chosen.has_integer_shards else "string"
    by_shard: dict[Shard, list[UnitFile]] = {}
    for file in chosen.files:
        by_shard.setdefault(file.manifest.unit.shard, []).append(file)
    frames = []
    for shard, own in by_shard.items():
        value: Any = shard if isinstance(shard, int) else shard_text(shard)
        frame = read_files(spark, columns, store, own)
        frames.append(frame.withColumn(SHARD_COLUMN, functions.lit(value).cast(kind)))
    if not frames:
        return spark.createDataFrame([], f"{columns}, {SHARD_COLUMN} {kind}")
    return _between(union(frames), start, end)


def _in_one_case(kinds: Mapping[str, pa.DataType], same: Sequence[Sequence[str]]) -> dict[str, pa.DataType]:
    """Return each column once, by the newest name, where units spell it in different letter case."""
    found = dict(kinds)
    for names in same:
        first, *others = (name for name in kinds if name in names)
        for name in others:
            wider = wider_type(found[first], found.pop(name))
            if wider is None:
                raise ColumnTypeError(
                    f"column {first!r} is {kinds[first]}, and {name!r} in other units is {kinds[name]}: "
                    "these types have no common type; export the older units again, or read the units "
                    "one by one",
                    column=first,
                )
            found[first] = wider
    return found


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """Unite frames in pairs: a plan as deep as the number of shards overflows Spark's stack."""
    while len(frames) > 1:
        pairs = [frames[at : at + 2] for at in range(0, len(frames), 2)]
        frames = [reduce(lambda one, other: one.unionByName(other), pair) for pair in pairs]
    return frames[0]


def read_files(spark: SparkSession, columns: str, store: ExportStore, files: Iterable[UnitFile]) -> DataFrame:
    """Read columns of an export's files, with their types as Spark's schemas are written."""
    return read_parquet(spark, columns, (store.files.url(file.path) for file in files))


def read_parquet(spark: SparkSession, columns: str, urls: Iterable[str]) -> DataFrame:
    """Read some columns of files that we have written; ``columns`` as for :func:`read_files`."""
    # Spark before 4.0 refuses days before 1582 unless it hears that the files have today's calendar.
    reader = spark.read.schema(columns).option("datetimeRebaseMode", "CORRECTED")
    return reader.parquet(*map(spark_path, urls))


def spark_path(url: str) -> str:
    """Return a path for Spark, which treats it as a pattern."""
    return _GLOB.sub(r"\\\1", url)


def _between(frame: DataFrame, start: datetime | None, end: datetime | None) -> DataFrame:
    """Leave out what units hold beyond the interval; ULIDs as text sort as they do as numbers."""
    if start is not None:
        frame = frame.where(frame[ULID_COLUMN] >= str(Ulid.floor(start)))
    if end is not None:
        frame = frame.where(frame[ULID_COLUMN] < str(Ulid.floor(end)))
    return frame


def check_times(spark: SparkSession, kinds: Mapping[str, pa.DataType]) -> None:
    """Raise ColumnTypeError, with the remedy, if there are times of the day that a session does not read."""
    from airflow_changefeed.spark.version_compat import HAS_TIME_TYPE

    leaves = [leaf for name, kind in kinds.items() for leaf in leaf_types(name, kind)]
    times = [name for name, kind in leaves if spark_type(name, kind).startswith("time(")]
    if not times:
        return
    if not HAS_TIME_TYPE:
        raise ColumnTypeError(
            f"columns {', '.join(map(repr, times))} hold times of day, which Spark reads from 4.1 on, "
            f"but this is {spark.version}: read without Spark (export_dataset), or with a later version",
            column=times[0],
            columns=times,
        )
    if spark.conf.get(_TIME_TYPE, "false") != "true":
        raise ColumnTypeError(
            f"columns {', '.join(map(repr, times))} hold times of day, which Spark reads from 4.1 on and "
            f"where {_TIME_TYPE} is true: set it with spark.conf.set, or read without Spark (export_dataset)",
            column=times[0],
            columns=times,
        )


def quoted(name: str) -> str:
    """Quote a column's name for Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def ddl(kinds: Mapping[str, pa.DataType], between: str = " ") -> str:
    """Return columns and their types as Spark's schemas are written."""
    return ", ".join(f"{quoted(name)}{between}{spark_type(name, kind)}" for name, kind in kinds.items())


def spark_type(name: str, kind: pa.DataType) -> str:
    """Return Spark's name for the Arrow type of an exported column; raise ColumnTypeError without any."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        inner = (f"{quoted(its.name)}: {spark_type(f'{name}.{its.name}', its.type)}" for its in kind)
        return f"struct<{', '.join(inner)}>"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_fixed_size_binary(kind):
        return "binary"
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if str(kind) in _SPARK_TYPES:
        return _SPARK_TYPES[str(kind)]
    raise ColumnTypeError(
        f"column {name!r} has Arrow type {kind}, which Spark does not read", column=name, type=str(kind)
    )
