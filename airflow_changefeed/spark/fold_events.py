# SPDX-License-Identifier: Apache-2.0
"""
Reads captured events into Spark, and the rows that a fold starts from, in the types of all files.

And looks, in few columns, for those that make the state unknowable, before all are read.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_changefeed.core.codec import decode_text
from airflow_changefeed.core.feed import Shard, parse_shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.core.values import format_time
from airflow_changefeed.lake.bases import Base
from airflow_changefeed.lake.fold_plan import RESOLVE, FoldSource
from airflow_changefeed.lake.inputs import NEW, OLD, FoldedFiles
from airflow_changefeed.output.read import UnitFile
from airflow_changefeed.sources.base import SHARD_COLUMN, ULID_COLUMN
from airflow_changefeed.spark.read import ddl, quoted, read_files, read_parquet, spark_type, union

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


CAPTURED_AT = "captured_at"
SHARD = "shard"
# Of a placed file, and of one that is being replaced.
_SHARD_IN_PATH = "^.*shard=([^/]+)/"
# Columns of an event that a fold reads, with Spark's types.
_OWN = {
    ULID_COLUMN: "string",
    "name": "string",
    "type": "string",
    "is_snapshot": "boolean",
    CAPTURED_AT: "timestamp",
    "ddl": "string",
}
# Types that databases compare by their own rules: case, accents, trailing blanks and zeros.
_LOOSE = ("string", "large_string", "binary", "large_binary")
# Types of events: the rows that are there follow, and all of them have followed.
RECORDING = ("reset", "ready")
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TIME_LETTERS = 10


@dataclass(frozen=True)
class CapturedEvents:
    """
    The events of a table, as far as they count: those after the base, if there is one.

    :param resets: ULID of each shard's last reset: it and what is before it are left out.
    """

    spark: SparkSession
    source: FoldSource
    resets: Mapping[Shard, str] = field(default_factory=dict)

    def read(
        self, own: Sequence[str], old: Sequence[str], new: Sequence[str], *, by_shard: bool = False
    ) -> DataFrame:
        """
        Read some columns of all files; two files with the same columns of one type are read at once.

        :param own: of the event itself.
        :param old: columns of the table, of the row before the change.
        :param new: likewise, of the row after it.
        :param by_shard: whether to add each event's shard, as text.
        """
        frames = []
        base = self.source.base
        begin = "" if base is None else str(base.after)
        for group in self.source.groups:
            parts: dict[str, list[UnitFile]] = {}
            for file in group.files:
                after = self.resets.get(file.manifest.unit.shard, begin)
                if str(file.facts.last) > after:
                    parts.setdefault(after, []).append(file)
            frames += [
                self._read(group, files, after, (own, old, new), by_shard) for after, files in parts.items()
            ]
        if not frames:
            kinds = {OLD: old, NEW: new}
            columns = [f"{name} {_OWN[name]}" for name in own]
            columns += [f"{image} struct<{self._ddl(names)}>" for image, names in kinds.items() if names]
            columns += [f"{SHARD} string"] if by_shard else []
            return self.spark.createDataFrame([], ", ".join(columns))
        return union(frames)

    def _read(
        self,
        group: FoldedFiles,
        files: Sequence[UnitFile],
        after: str,
        wanted: tuple[Sequence[str], Sequence[str], Sequence[str]],
        by_shard: bool,
    ) -> DataFrame:
        from pyspark.sql import functions

        own, *images = wanted
        end = Ulid.floor(self.source.at)
        has_later = any(file.facts.last >= end for file in files)
        has_earlier = any(str(file.facts.first) <= after for file in files)
        needed = {*own, "name", "type", *((ULID_COLUMN,) if has_earlier or has_later else ())}
        columns = [f"{name} {_OWN[name]}" for name in _OWN if name in needed]
        for image, names in zip((OLD, NEW), images, strict=True):
            there = {field: group.fields[field] for field in map(self._field, names) if field in group.fields}
            if names and not there:
                # One field is still needed, to see whether there is a row.
                there = dict([next(iter(group.fields.items()))])
            columns += [f"{image} struct<{ddl(there, ': ')}>"] if there else []
        frame = read_files(self.spark, ", ".join(columns), self.source.store, files)
        if by_shard:
            shards = {file.manifest.unit.shard for file in files}
            path = functions.col("_metadata.file_path")
            # Most captures have one shard, and an expression for each event takes time.
            shard = (
                functions.lit(shard_text(shards.pop()))
                if len(shards) == 1
                else functions.regexp_extract(path, _SHARD_IN_PATH, 1)
            )
            frame = frame.withColumn(SHARD, shard)
        frame = frame.where(functions.col("name") == self.source.table)
        if has_earlier:
            frame = frame.where(functions.col(ULID_COLUMN) > after)
        if has_later:
            frame = frame.where(functions.col(ULID_COLUMN) < str(end))
        read = [
            self._image(group, image, names) for image, names in zip((OLD, NEW), images, strict=True) if names
        ]
        return frame.select(*own, *read, *([SHARD] if by_shard else []))

    def _image(self, group: FoldedFiles, image: str, names: Sequence[str]) -> Column:
        """Return an image with the table's columns and their types of all files."""
        from pyspark.sql import functions

        kinds, row = self.source.kinds, functions.col(image)
        if all(self._field(name) == name and group.fields.get(name) == kinds[name] for name in names):
            return row
        values = []
        for name in names:
            is_there = self._field(name) in group.fields
            value = row.getField(self._field(name)) if is_there else functions.lit(None)
            values.append(value.cast(spark_type(name, kinds[name])).alias(name))
        # Null stays null: a struct of nulls would be a row.
        return functions.when(row.isNotNull(), functions.struct(*values)).alias(image)

    def _field(self, column: str) -> str:
        return self.source.columns[column]

    def _ddl(self, names: Sequence[str]) -> str:
        return ddl({name: self.source.kinds[name] for name in names}, ": ")


@dataclass(frozen=True)
class SpecialEvents:
    """
    How many events need care.

    :param recordings: begins and ends of recording the rows that are there.
    :param ddl: changed columns.
    :param lost_keys: updates without an old row.
    :param moved: those with a key of other bytes.
    """

    recordings: int
    ddl: int
    lost_keys: int
    moved: int


@dataclass(frozen=True)
class RecordedRows:
    """
    Where the rows that were there are recorded.

    :param resets: ULID of each shard's last reset.
    :param ready: of the last event that says they are all recorded; empty without any.
    """

    resets: Mapping[Shard, str]
    ready: str


def _moving_keys(source: FoldSource) -> list[str]:
    """Return the key columns whose different values a database may treat as equal."""
    return [key for key in source.keys if str(source.kinds[key]) in _LOOSE]


def moved_key(source: FoldSource) -> Column:
    """Whether an update has another key than the row before it: only by case or trailing blanks."""
    from pyspark.sql import functions

    old, new = functions.col(OLD), functions.col(NEW)
    differ = [old.getField(key) != new.getField(key) for key in _moving_keys(source)]
    return (functions.col("type") == "upd") & reduce(lambda one, other: one | other, differ)


def count_special(events: CapturedEvents) -> SpecialEvents:
    """Count the events that need care, in as few columns as possible; most folds find none."""
    from pyspark.sql import functions

    source, kind = events.source, functions.col("type")
    moving = _moving_keys(source)
    found = [functions.count_if(kind.isin(*RECORDING)), functions.count_if(kind == "ddl")]
    if not source.loses_keys and not moving:
        # Spark passes over files whose dictionary of types has none of them.
        frame = events.read(["type"], [], []).where(kind.isin(*RECORDING, "ddl"))
        (row,) = frame.agg(*found, functions.lit(0), functions.lit(0)).collect()
        return SpecialEvents(*row)
    frame = events.read(["type"], moving or source.keys[:1], moving)
    found.append(functions.count_if((kind == "upd") & functions.col(OLD).isNull()))
    found.append(functions.count_if(moved_key(source)) if moving else functions.lit(0))
    (row,) = frame.agg(*found).collect()
    return SpecialEvents(*row)


def recorded_rows(events: CapturedEvents) -> RecordedRows:
    """
    Return the last reset of each shard, and the end of what followed it.

    They make known what was not: the reset is written into every shard that there is, the rows behind it, and
    in the end another event. A shard without both has begun later, or its rows are unknown still.

    :raises FoldError: not all rows have followed, or they are unknown.
    """
    from pyspark.sql import functions

    source, kind = events.source, functions.col("type")
    counts = kind.isin(*RECORDING)
    if source.known_from is not None:
        counts &= functions.col(ULID_COLUMN) >= str(Ulid.floor(source.known_from))
    columns = [ULID_COLUMN, "type", CAPTURED_AT] if source.unknown else [ULID_COLUMN, "type"]
    frame = events.read(columns, [], [], by_shard=True)
    found = [
        functions.max(functions.when(counts & (kind == one), functions.col(ULID_COLUMN))).alias(one)
        for one in RECORDING
    ]
    if source.unknown:
        time = functions.unix_millis(CAPTURED_AT)
        found += [
            functions.min(functions.when(counts & (kind == "reset"), time)).alias("known"),
            functions.min(time).alias("begun"),
        ]
    else:
        frame = frame.where(counts)
    rows = frame.groupBy(SHARD).agg(*found).collect()
    if source.unknown:
        since = min((row["known"] for row in rows if row["reset"]), default=None)
        bare = [row for row in rows if not row["reset"] and not row["ready"]]
        left = [row[SHARD] for row in bare if since is None or row["begun"] < since]
        if since is None or left:
            raise source.refusal(source.unknown, shards=left)
    unready = [row["reset"] for row in rows if row["reset"] and (row["ready"] or "") < row["reset"]]
    if unready:
        begun = format_time(min(map(Ulid.parse_text, unready)).time)
        raise source.refusal(
            f"its rows have been recorded since {begun}, and were not all recorded by then: fold a "
            "later time, or take a snapshot of the table (snapshot take)"
        )
    resets = {parse_shard(row[SHARD]): row["reset"] for row in rows if row["reset"]}
    return RecordedRows(resets, max((row["ready"] for row in rows if row["ready"]), default=""))


def refuse_unrecorded(events: CapturedEvents) -> None:
    """Refuse columns that got values in older rows without an event: those rows would keep what they had."""
    from pyspark.sql import functions

    source = events.source
    frame = events.read([ULID_COLUMN, "type", "ddl"], [], []).where(functions.col("type") == "ddl")
    # Each shard has the same text.
    rows = frame.groupBy("ddl").agg(functions.min(ULID_COLUMN).alias("first")).collect()
    names = {place: name for name, place in source.columns.items()}
    for row in sorted(rows, key=lambda one: str(one["first"])):
        fields = decode_text(_Ddl, row["ddl"], named=f"the ddl event {row['first']}").unrecorded
        changed = [names[field] for field in fields if field in names]
        if changed:
            time = format_time(Ulid.parse_text(row["first"]).time)
            raise source.refusal(
                f"the table's columns were changed at {time} (event {row['first']}), and no event has the "
                f"values of {', '.join(map(repr, changed))} in older rows: {RESOLVE}",
                ulid=row["first"],
                columns=changed,
            )


@dataclass(frozen=True)
class _Ddl:
    """What a fold must know of a change of columns: the fields whose values older rows do not have."""

    unrecorded: tuple[str, ...]


def refuse_lost_keys(events: CapturedEvents) -> None:
    """Refuse updates whose old row is not known: the key that it had stays in the table forever."""
    from pyspark.sql import functions

    source = events.source
    frame = events.read([ULID_COLUMN, "type"], source.keys[:1], [])
    frame = frame.where((functions.col("type") == "upd") & functions.col(OLD).isNull())
    (row,) = frame.agg(
        functions.min(ULID_COLUMN).alias("first"), functions.count("*").alias("rows")
    ).collect()
    if row["rows"]:
        raise source.refusal(
            f"{row['rows']} updates changed a key without the old one, the first of them event "
            f"{row['first']}: enable the capture with key_change='delete_insert', and {RESOLVE}",
            ulid=row["first"],
        )


def versions(changes: DataFrame, keys: int) -> DataFrame:
    """
    Return the changes that make or end a version of a row, with its ends: ``since``, null where the event
    recorded a row that was there before; ``until``, null for the last one of its key; and ``is_first``.

    A row that is recorded where earlier events have made it already has not changed.

    :param changes: of :func:`~airflow_changefeed.spark.fold.changes`, whole.
    :param keys: how many key columns they have.
    """
    from pyspark.sql import Window, functions

    of_key = Window.partitionBy(*(f"key{number}" for number in range(keys))).orderBy(ULID_COLUMN)
    was_there = functions.lag(functions.col(NEW).isNotNull()).over(of_key)
    marked = changes.withColumn("was_there", was_there)
    is_first = functions.col("was_there").isNull()
    is_recorded = functions.coalesce("is_snapshot", functions.lit(False))
    kept = marked.where(is_first | ~(is_recorded & functions.col("was_there")))
    since = functions.when(~(is_first & is_recorded), functions.col(ULID_COLUMN))
    until = functions.lead(ULID_COLUMN).over(of_key)
    return kept.select("*", since.alias("since"), until.alias("until"), is_first.alias("is_first")).drop(
        "was_there"
    )


def ulid_time(ulid: Column) -> Column:
    """Return the time of a ULID: its first letters, in Crockford's base 32, are milliseconds."""
    from pyspark.sql import functions

    milliseconds = functions.lit(0).cast("bigint")
    for place in range(_TIME_LETTERS):
        letter = functions.substring(ulid, place + 1, 1)
        digit = functions.position(letter, functions.lit(_CROCKFORD))
        milliseconds = milliseconds * 32 + (digit - 1)
    return functions.timestamp_millis(milliseconds)


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
