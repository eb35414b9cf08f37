# SPDX-License-Identifier: Apache-2.0
"""The statements that cut a captured table into ranges of its primary key, and read one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from airflow_changefeed.core.feed import Column, counted
from airflow_changefeed.exceptions import ColumnTypeError, InvalidArgumentError
from airflow_changefeed.sources.base_capture import KeyCondition, KeyRange, TableColumns, key_text, key_values
from airflow_changefeed.sources.mssql.capture.table import (
    KeyColumn,
    SourceTable,
    bound,
    condition_declarations,
    condition_values,
    conditions_sql,
    declarations,
)
from airflow_changefeed.sources.mssql.connection.session import Session
from airflow_changefeed.sources.mssql.feed.arrow import (
    check_given,
    exported_arrays,
    plan_batches,
    replaced_texts,
)
from airflow_changefeed.sources.mssql.feed.feed import parse
from airflow_changefeed.sources.mssql.feed.mapping import Exported, parts
from airflow_changefeed.sources.mssql.feed.query import FRESH, ArrowQuery
from airflow_changefeed.sources.mssql.names import quote

#: Answers a statement with its parameters, on another connection than the stream's.
Ask = Callable[[str, tuple[Any, ...]], list[tuple[Any, ...]]]

SHARD = "changefeed_shard"
#: What is no code unit of a surrogate pair, for a binary collation; without the ends of the ranges of
#: surrogates, which some servers refuse to write.
_NO_SURROGATES = "nchar(1) + N'-' + nchar(55295) + nchar(57344) + N'-' + nchar(65533)"


def _declare(variables: Sequence[str]) -> str:
    return f"declare {', '.join(variables)}; " if variables else ""


def _read(table: SourceTable) -> str:
    """
    Return the table as it is read: by its primary key.

    By any other index, a change of a column that is not captured could move a row without an event.
    """
    return f"{table.full} as t with (index({quote(table.index)}))"


@dataclass(frozen=True)
class TableQuery(ArrowQuery):
    """The statement that reads a range of a captured table."""

    table: SourceTable
    range: KeyRange
    conditions: tuple[KeyCondition, ...] = ()

    def __post_init__(self) -> None:
        for given in (self.range.after, self.range.upto):
            if given is not None and len(key_values(given)) != len(self.table.keys):
                raise InvalidArgumentError(
                    f"{self.where}: {given} is not a key of the table, which has "
                    f"{counted(len(self.table.keys), 'column')}; cut the table again"
                )

    @property
    def where(self) -> str:
        return f"table {self.table.name!r} of capture {self.feed.name!r}"

    @property
    def facts(self) -> dict[str, Any]:
        return {"feed": self.feed.name, "table": self.table.name}

    @cached_property
    def columns(self) -> list[Exported]:
        """The shard is the last one."""
        type_ = self.feed.shard_key_type
        column = Column(SHARD, type_ if type_ == "uniqueidentifier" else "bigint")
        (part,) = parts(parse(column))
        return [*self.table.exported, Exported(column, part, f"convert({column.type}, s.{SHARD})")]

    @cached_property
    def schema(self) -> pa.Schema:
        """The batches' schema."""
        return pa.schema([one.field for one in self.columns])

    @property
    def values(self) -> tuple[Any, ...]:
        given = (self.range.after, self.range.upto)
        ends = [value for key in given if key is not None for value in key_values(key)]
        return (*ends, *condition_values(self.conditions))

    @property
    def _declarations(self) -> str:
        keys = self.table.keys
        after = declarations(keys, "a") if self.range.after is not None else []
        upto = declarations(keys, "b") if self.range.upto is not None else []
        return _declare([*after, *upto, *condition_declarations(keys, self.conditions)])

    @property
    def _conditions(self) -> list[str]:
        keys = self.table.keys
        after = [bound(keys, ">", "a")] if self.range.after is not None else []
        upto = [bound(keys, "<=", "b")] if self.range.upto is not None else []
        return [*after, *upto, *conditions_sql(self.conditions)]

    @property
    def _from(self) -> str:
        # As the triggers of the capture compute it; a shard that does not fit its type is null.
        keys = ", ".join(key.name for key in self.table.keys)
        shard = f"select try_convert({self.feed.shard_key_type}, ({self.table.shard})) as {SHARD}"
        where = f" where {' and '.join(self._conditions)}" if self._conditions else ""
        return f"from {_read(self.table)} cross apply ({shard} from (select {keys}) as k) as s{where}"

    @property
    def _order(self) -> str:
        return ordered(self.table.keys)

    @property
    def sql(self) -> str:
        """Gives the columns; in the order of the key if large objects were measured in it."""
        selected = ", ".join(f"{one.selected} as c{number}" for number, one in enumerate(self.columns))
        order = f" order by {self._order}" if self.large_objects else ""
        return f"{self._declarations}select {selected} {self._from}{order} {FRESH}"

    def surrogates_sql(self, number: int) -> str:
        """
        Return a statement that gives the UTF-16 bytes of the texts with characters of two code units.

        :param number: of the column in :attr:`columns`.
        """
        text = f"convert(nvarchar(max), {self.columns[number].selected})"
        joined = "and" if self._conditions else "where"
        return (
            f"{self._declarations}select convert(varbinary(max), {text}) as v {self._from} {joined} "
            f"{text} collate Latin1_General_BIN2 like N'%[^' + {_NO_SURROGATES} + N']%' {FRESH}"
        )


def ordered(keys: Sequence[KeyColumn]) -> str:
    """Return the order of a key's index."""
    return ", ".join(key.ordered for key in keys)


def table_columns(table: SourceTable) -> TableColumns:
    """Return what reading a table gives."""
    query = TableQuery(table.feed, table, KeyRange())
    return TableColumns(table.shape, query.schema, table.fields, table.feed.info.resource_version)


def stream_range(session: Session, query: TableQuery, most: int, ask: Ask) -> Iterator[pa.RecordBatch]:
    """
    Stream a range; the connection is busy until the last batch.

    :param most: rows of a batch.
    :raises ColumnTypeError: a value cannot be exported unchanged, or a row has no shard.
    :raises SchemaChangedError: a column has another type than before.
    """
    rows = plan_batches(session, query, most)
    checked: set[int] = set()

    def check_text(number: int, column: pa.Array) -> None:
        if number not in checked and any(True for _ in replaced_texts(column)):
            checked.add(number)
            _check_surrogates(query, number, ask)

    for batch in session.arrow_batches(query.sql, query.values, rows.next):
        rows.learn(batch.num_rows, batch.nbytes)
        check_given(query, batch)
        arrays = exported_arrays(query, batch, check_text)
        _check_shards(query, arrays[-1])
        yield pa.RecordBatch.from_arrays(arrays, schema=query.schema)


def _check_surrogates(query: TableQuery, number: int, ask: Ask) -> None:
    """Refuse half of a surrogate pair, which the driver has replaced, in a column of the whole range."""
    for (value,) in ask(query.surrogates_sql(number), query.values):
        try:
            value.decode("utf-16-le")
        except UnicodeDecodeError:
            exported = query.columns[number]
            raise ColumnTypeError(
                f"{query.where}: {exported} cannot be exported unchanged: a value holds half of a surrogate "
                "pair, which is not valid Unicode text. Correct the value, or keep such values as varbinary",
                column=exported.column.name,
                **query.facts,
            ) from None


def _check_shards(query: TableQuery, shards: pa.Array) -> None:
    if shards.null_count:
        raise ColumnTypeError(
            f"{query.where}: no shard for {counted(shards.null_count, 'row')}: {query.table.shard} is null "
            f"or not of type {query.feed.shard_key_type} for their keys, so their changes cannot be recorded "
            "either. Correct their keys, or enable a capture with another shard expression",
            column=SHARD,
            **query.facts,
        )


def cut(table: SourceTable, rows: int, ask: Ask, where: str = "") -> list[str]:
    """
    Return the keys that cut a table into ranges of so many rows, each by a statement that seeks to the last.

    :param ask: answers a statement; the table may change between two.
    :param where: conditions on the key: only rows for which they are true count.
    """
    conditions = table.conditions(where)
    bounds: dict[str, None] = {}
    after: tuple[Any, ...] = ()
    while found := ask(*next_bound(table, after, rows, conditions)):
        after = tuple(found[0])
        text = key_text(after)
        if text in bounds:
            raise ColumnTypeError(
                f"table {table.name!r} of capture {table.feed.name!r} cannot be cut into ranges: a key holds "
                "half of a surrogate pair, which is not valid Unicode text. Correct it",
                feed=table.feed.name,
                table=table.name,
            )
        bounds[text] = None
    return list(bounds)


def next_bound(
    table: SourceTable, after: tuple[Any, ...], rows: int, conditions: Sequence[KeyCondition] = ()
) -> tuple[str, tuple[Any, ...]]:
    """Return the statement, with its parameters, that gives the key so many rows behind another."""
    keys = table.keys
    selected = ", ".join(f"{key.selected} as k{number}" for number, key in enumerate(keys))
    ends = [bound(keys, ">", "a")] if after else []
    declared = _declare(
        [*(declarations(keys, "a") if after else []), *condition_declarations(keys, conditions)]
    )
    wanted = [*ends, *conditions_sql(conditions)]
    where = f" where {' and '.join(wanted)}" if wanted else ""
    return (
        f"{declared}select {selected} from {_read(table)}{where} order by {ordered(keys)} "
        f"offset {rows - 1} rows fetch next 1 rows only"
    ), (*after, *condition_values(conditions))
