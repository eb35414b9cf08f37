# SPDX-License-Identifier: Apache-2.0
"""The statements that read rows of SQL Server into Arrow batches, and how many of them make a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import FeedSetupError
from airflow_changefeed.sources.arrow import TIME_FIELD, ULID_FIELD, ulid_texts, ulid_times
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed, parse
from airflow_changefeed.sources.mssql.feed.mapping import (
    Exported,
    exported_columns,
    is_large_object,
    most_bytes,
)
from airflow_changefeed.sources.mssql.names import quote

#: Bytes of a batch: long values, not many rows, fill a worker's memory.
BATCH_BYTES = 64 * 1024 * 1024
#: Bytes of the longest value that is exported: half of what Parquet and Java can address, as text may become
#: half as long again in UTF-8.
MAX_VALUE_BYTES = 1024 * 1024 * 1024
#: Rows of a batch where nothing is known of their length.
_CAREFUL_ROWS = 64
#: Lets the server plan for this very range: for variables it would guess that a tenth of the feed is read,
#: and scan the whole event table for an hour of it.
FRESH = "option (recompile)"
#: Types that the server keeps in a form that may be far shorter than their text.
_STORED_SHORTER = ("xml", "json")


@dataclass(frozen=True)
class ArrowQuery(ABC):
    """The statements whose rows become Arrow batches."""

    #: Columns that are selected before :attr:`columns`.
    first_columns: ClassVar[int] = 0

    feed: MssqlFeed

    @property
    @abstractmethod
    def columns(self) -> list[Exported]:
        """What is selected, each with its conversion."""

    @property
    @abstractmethod
    def values(self) -> tuple[Any, ...]:
        """The statements' parameters."""

    @property
    @abstractmethod
    def sql(self) -> str:
        """Gives the rows."""

    @property
    @abstractmethod
    def where(self) -> str:
        """What is read, for people."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What is read, for errors."""

    @property
    @abstractmethod
    def _declarations(self) -> str:
        """The variables that take the parameters."""

    @property
    @abstractmethod
    def _from(self) -> str:
        """The tables with the condition."""

    @property
    @abstractmethod
    def _order(self) -> str:
        """By what the rows are ordered where their lengths are measured."""

    @cached_property
    def _whole(self) -> list[Exported]:
        """The exported columns, without those that hold what another cannot."""
        return [one for one in self.columns if not one.part.suffix]

    @cached_property
    def large_objects(self) -> list[Exported]:
        """The columns whose values may be of any length."""
        return [one for one in self._whole if is_large_object(parse(one.column))]

    @property
    def most_row_bytes(self) -> int:
        """Bytes that a row takes at most, as declared, without large objects."""
        declared = [parse(one.column) for one in self._whole]
        return sum(most_bytes(one) for one in declared if not is_large_object(one))

    @staticmethod
    def _size(exported: Exported) -> str:
        """Say how many bytes a large object has, which the server mostly knows without reading it."""
        value = exported.source
        if parse(exported.column).name in _STORED_SHORTER:
            value = f"cast({value} as nvarchar(max))"
        return f"convert(bigint, datalength({value}))"

    @property
    def sizes_sql(self) -> str:
        """Gives the rows that fill one batch after the other, and the longest of each large object there."""
        sizes = [f"isnull({self._size(one)}, 0)" for one in self.large_objects]
        named = ", ".join(f"{size} as s{number}" for number, size in enumerate(sizes))
        running = f"sum({' + '.join(sizes)}) over (order by {self._order} rows unbounded preceding)"
        longest = ", ".join(f"max(s{number})" for number in range(len(sizes)))
        return (
            f"{self._declarations}select count_big(*), {longest} from "
            f"(select {named}, {running} / {BATCH_BYTES} as batch {self._from}) sized "
            f"group by batch order by batch {FRESH}"
        )


@dataclass(frozen=True)
class RangeQuery(ArrowQuery):
    """
    The statements that read a range of a feed.

    :param range: ``(after, upto]``.
    :param only: columns of a row that are read; None for all.
    """

    first_columns = 2

    shard: Shard
    range: UlidRange
    on_missing: str
    only: Collection[str] | None = None

    @cached_property
    def columns(self) -> list[Exported]:
        """What is selected behind the ULID and whether the row is missing."""
        # A key is the feed's, as its row may be gone.
        fed = () if self.feed.is_serialized else self.feed.info.key_columns
        return [
            replace(one, source=self.value("f" if one.column in fed else "e", one.column.name))
            for one in exported_columns(self.feed, self.feed.info.columns)
        ]

    def value(self, alias: str, column: str) -> str:
        """Return what is selected for a column: a null of its type, if it is not read."""
        value = f"{alias}.{quote(column)}"
        return value if self.only is None or column in self.only else f"case when 1 = 0 then {value} end"

    @cached_property
    def schema(self) -> pa.Schema:
        """The batches' schema."""
        return pa.schema([ULID_FIELD, TIME_FIELD, *(column.field for column in self.columns)])

    def batch(self, ulids: np.ndarray, arrays: list[pa.Array]) -> pa.RecordBatch:
        """
        Return a batch of :attr:`schema`.

        :param ulids: uint8, shape (rows, 16).
        :param arrays: of :attr:`columns`, converted.
        """
        return pa.RecordBatch.from_arrays([ulid_texts(ulids), ulid_times(ulids), *arrays], schema=self.schema)

    @property
    def may_miss_rows(self) -> bool:
        """Whether an event whose row is gone is given with its keys alone."""
        return self.on_missing != "fail"

    @property
    def missing_advice(self) -> str:
        """What to do about rows that are gone."""
        return "Restore the rows, or export with on_missing='keys_only'"

    def text_advice(self, exported: Exported, ulid: Ulid) -> str:
        """What to do about an event's text that is not valid Unicode."""
        return "Correct the value, or keep such values as varbinary"

    @property
    def where(self) -> str:
        return f"feed {self.feed.name!r} shard {shard_text(self.shard)}"

    @property
    def facts(self) -> dict[str, Any]:
        return {"feed": self.feed.name, "shard": self.shard}

    @property
    def values(self) -> tuple[Any, ...]:
        shard = () if self._has_no_shard else (self.feed.to_sql(self.shard),)
        return (self.range.after.bytes, self.range.upto.bytes, *shard)

    @property
    def _has_no_shard(self) -> bool:
        return self.feed.is_serialized and self.feed.shard_column is None

    @property
    def _declarations(self) -> str:
        shard = "" if self._has_no_shard else f", @shard_id {self.feed.shard_key_type} = ?"
        return f"declare @after binary(16) = ?, @upto binary(16) = ?{shard}; "

    @cached_property
    def _source(self) -> tuple[str, str, str]:
        """The ULID, whether the row is missing, and the tables with the condition."""
        feed = self.feed
        if feed.table is None or (feed.is_serialized and feed.ulid_column is None):
            raise FeedSetupError(
                f"feed {feed.name!r} cannot be streamed: its event table or ULID column is missing",
                feed=feed.name,
            )
        if feed.is_serialized:
            ulid, missing, tables = f"e.{quote(feed.ulid_column or '')}", "0", f"{feed.table} e"
            shard = f"e.{quote(feed.shard_column)}" if feed.shard_column else None
        else:
            keys = [quote(column.name) for column in feed.info.key_columns]
            ulid, missing = "f.ulid", f"case when e.{keys[0]} is null then 1 else 0 end"
            joined = " and ".join(f"e.{key} = f.{key}" for key in keys)
            tables = f"{feed.object('feed')} f left join {feed.table} e on {joined}"
            shard = "f.shard_id"
        of_shard = f"{shard} = @shard_id and " if shard else ""
        return ulid, missing, f"from {tables} where {of_shard}{ulid} > @after and {ulid} <= @upto"

    @property
    def _from(self) -> str:
        return self._source[2]

    @property
    def _order(self) -> str:
        return self._source[0]

    @property
    def sql(self) -> str:
        """Gives ULID, whether the row is missing, then the columns; rows in ascending ULID."""
        ulid, missing, source = self._source
        selected = [f"{column.selected} as c{number}" for number, column in enumerate(self.columns)]
        values = "".join(f", {one}" for one in selected)
        statement = f"select {ulid} as u, {missing} as m{values} {source} order by {ulid} {FRESH}"
        return f"{self._declarations}{statement}"

    def end_sql(self, limit: int) -> tuple[str, tuple[Any, ...]]:
        """
        Return a statement, with its parameters, for the last of the first events of the range.

        Its range is then read, as a server plans a limited range like the whole.

        :param limit: events, at most.
        """
        ulid, _, source = self._source
        # From the bottom, as the stand-in knows no maximum of binaries. The joined rows are not looked at.
        return (
            f"{self._declarations}declare @limit bigint = ?; select top (1) p.u from (select top (@limit) "
            f"{ulid} as u {source} order by {ulid}) p order by p.u desc {FRESH}"
        ), (*self.values, limit)

    def differing_sql(self, number: int, texts: Mapping[Ulid, str]) -> tuple[str, tuple[Any, ...]]:
        """
        Return a statement, with its parameters, that gives the events whose text is another one than we have.

        Gives ULID, and the text's bytes. Compared as bytes on the server, as collations take some for equal.

        :param number: of the column in :attr:`columns`.
        :param texts: what we have of it.
        """
        ulid, _, source = self._source
        given = ", ".join(["(convert(binary(16), ?), convert(nvarchar(max), ?))"] * len(texts))
        value = f"convert(varbinary(max), convert(nvarchar(max), {self.columns[number].selected}))"
        sql = (
            f"{self._declarations}select {ulid} as u, {value} as v {source} and exists (select 1 from "
            f"(values {given}) g (u, t) where g.u = {ulid} and {value} <> convert(varbinary(max), g.t))"
        )
        return sql, (
            *self._between(texts),
            *(part for one, text in texts.items() for part in (one.bytes, text)),
        )

    def present_sql(self, number: int, ulids: Collection[Ulid]) -> tuple[str, tuple[Any, ...]]:
        """Return a statement, with its parameters, for how many of some events have a value in a column."""
        ulid, _, source = self._source
        marks = ", ".join(["convert(binary(16), ?)"] * len(ulids))
        value = self.columns[number].source
        sql = f"{self._declarations}select count(*) {source} and {ulid} in ({marks}) and {value} is not null"
        return sql, (*self._between(ulids), *(one.bytes for one in ulids))

    def _between(self, ulids: Collection[Ulid]) -> tuple[Any, ...]:
        """Return the parameters of the part of the range where some events lie."""
        return replace(self, range=UlidRange(min(ulids).previous(), max(ulids))).values


class BatchRows:
    """
    How many rows the next batch gets: those that were asked for, or fewer where they are long.

    :param most: rows, as asked for.
    :param known: rows of each batch where large objects were measured; empty otherwise.
    :param row_bytes: that a row takes at most, without large objects.
    """

    def __init__(self, most: int, known: Sequence[int] = (), row_bytes: int = 0) -> None:
        self._most = most
        self._known = iter(known)
        self._is_measured = bool(known)
        self._left = 0
        self._least = max(1, min(most, BATCH_BYTES // max(row_bytes, 1)))
        self._rows = self._least

    def next(self) -> int:
        """Return the rows of the next batch."""
        if not self._is_measured:
            return self._rows
        if not self._left:
            # Rows that were deleted or changed meanwhile may shift the sizes: nothing is known any more.
            self._left = next(self._known, min(self._most, _CAREFUL_ROWS))
        # What was measured are the large objects alone.
        rows = min(self._left, self._rows)
        self._left -= rows
        return rows

    def learn(self, rows: int, size: int) -> None:
        """Learn from a batch how long rows really are; most declared lengths are never reached."""
        usual = 2 * size // max(rows, 1) + 1
        self._rows = max(self._least, min(self._most, BATCH_BYTES // usual))
