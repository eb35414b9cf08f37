# SPDX-License-Identifier: Apache-2.0
"""Reads captured events into Spark: of one table, as few columns as asked for, in the types of all files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.folding.inputs import NEW, OLD
from airflow_changefeed.folding.plan import FoldedFiles, FoldSource
from airflow_changefeed.output.read import UnitFile
from airflow_changefeed.sources.base import ULID_COLUMN
from airflow_changefeed.spark.read import ddl, read_files, spark_type, union

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
    CAPTURED_AT: "timestamp",
    "ddl": "string",
}


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
            columns = [f"{name} string" for name in own]
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
