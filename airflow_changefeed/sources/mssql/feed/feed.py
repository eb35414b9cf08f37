# SPDX-License-Identifier: Apache-2.0
"""A feed for SQL Server statements: its registry row, names of its objects, types of its columns."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property
from typing import Any, NamedTuple

from airflow_changefeed.core.capture import CaptureGap, CaptureShape
from airflow_changefeed.core.feed import Column, FeedInfo, FeedKind, Shard, check_shard, shard_text
from airflow_changefeed.exceptions import InvalidArgumentError, storable
from airflow_changefeed.sources.mssql.names import literal, quote
from airflow_changefeed.sql import load_sql
from airflow_changefeed.sql.mssql import FEED, INSTALL

#: Parameters for texts of people, handlers and drivers, which may hold what no database stores.
_FREE_TEXTS = ("by", "error", "holder", "note", "reason", "why")
_PARAMETER = re.compile(r"@(\w+) (<<shard_type>>|\w+(?:\(\w+\))?)")


@cache
def parameter_types(procedure: str) -> dict[str, str]:
    """
    Return the types of a procedure's parameters by name, as the file that creates it declares them.

    A procedure that differs between kinds of feeds has the same parameters in each of their files.
    """
    files = [f"install/{name}" for name in INSTALL] + [f"feed/{name}" for name in FEED]
    file = next(file for file in files if file.rpartition("/")[2] == f"{procedure}.procedure")
    _, _, created = load_sql(f"mssql/{file}.sql").partition("\ncreate or alter procedure ")
    return dict(_PARAMETER.findall(created.partition("\nas\n")[0]))


def is_common(procedure: str) -> bool:
    """Return whether a procedure is common to all feeds; else each feed has its own."""
    return f"{procedure}.procedure" in INSTALL


def call(
    schema: str,
    procedure: str,
    arguments: Mapping[str, Any],
    shard_key_type: str = "int",
    suffix: str = "",
) -> tuple[Any, ...]:
    """
    Return the batch that calls one of our procedures, and behind it its values, as a session takes them.

    :param procedure: for example ``setup_feed``, or ``read_feed:`` with the feed's name behind it.
    :param arguments: by name; None keeps the procedure's default. Declares the types, because the driver
        guesses them from the values, and never binary for a null.
    :param suffix: of the names of variables, which a batch has once.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    types = parameter_types(procedure.partition(":")[0])
    for name in given.keys() & _FREE_TEXTS:
        given[name] = storable(given[name], int(types[name].removeprefix("nvarchar(").rstrip(")")))
    declared = ", ".join(f"@{name}{suffix} {types[name]} = ?" for name in given)
    named = ", ".join(f"@{name} = @{name}{suffix}" for name in given)
    declare = f"declare {declared}; " if given else ""
    text = f"{declare}exec {quote(schema)}.{quote(procedure)} {named}".rstrip()
    return text.replace("<<shard_type>>", shard_key_type), *given.values()


_WITH_LENGTH = ("binary", "varbinary", "char", "varchar")
_WITH_WIDE_LENGTH = ("nchar", "nvarchar")
_WITH_SCALE = ("datetime2", "time", "datetimeoffset")
_WITH_PRECISION = ("decimal", "numeric")
_DECLARED = re.compile(r"(\w+)(?:\((\w+)(?:, ?(\d+))?\))?")
#: Types that are other words for one that the catalog lists.
_SYNONYMS = {"timestamp": "rowversion"}


class Declared(NamedTuple):
    """
    A declared type, taken apart.

    :param length: characters, bytes, precision, or fraction digits of seconds; None for ``max`` and for types
        that have none.
    """

    name: str
    length: int | None
    scale: int
    is_max: bool


def declared(column: Mapping[str, Any]) -> str:
    """
    Write a column's type as one declares it, for example ``nvarchar(100)``.

    :param column: ``type``, ``max_length`` in bytes or -1, ``precision`` and ``scale``, as ``sys.columns``
        has them.
    """
    name = str(column["type"]).lower()
    length = column["max_length"]
    if name == "sysname":
        # Another name of nvarchar(128), which some catalogs resolve and some do not.
        return "nvarchar(128)"
    if name in (*_WITH_LENGTH, *_WITH_WIDE_LENGTH):
        wide = 2 if name in _WITH_WIDE_LENGTH else 1
        return f"{name}({'max' if length == -1 else length // wide})"
    if name in _WITH_PRECISION:
        return f"{name}({column['precision']},{column['scale']})"
    if name in _WITH_SCALE:
        return f"{name}({column['scale']})"
    return _SYNONYMS.get(name, name)


def parse(column: Column) -> Declared:
    """Take a declared type apart."""
    found = _DECLARED.fullmatch(column.type)
    if found is None:
        return Declared(column.type, None, 0, False)
    name, length, scale = found.groups()
    is_max = length == "max"
    return Declared(name, None if is_max or length is None else int(length), int(scale or 0), is_max)


def stored_type(column: Column) -> str:
    """Return the type in which a key column's values are kept beside their ULIDs."""
    return "binary(8)" if column.type == "rowversion" else column.type


@dataclass(frozen=True)
class MssqlCapture:
    """
    A capture's facts for its readers.

    :param tables: their names, by number.
    :param has_session: whether session variables are recorded.
    :param has_ddl: whether any change of columns was recorded. Until then its long texts are not read.
    :param gaps: that are open.
    """

    capture_id: int
    shape: CaptureShape
    tables: tuple[str, ...]
    has_session: bool
    has_ddl: bool = False
    gaps: tuple[CaptureGap, ...] = ()


@dataclass(frozen=True)
class MssqlFeed:
    """
    A feed's row of ``changefeed.feeds``, and the names of its objects, quoted.

    :param schema: that changefeed is installed in.
    :param ulid_column: of the event table of serialized writers.
    :param shard_column: the same; None if the table has a single shard.
    :param key_collations: of the key columns, or None.
    :param refusals: why a column cannot be exported although its type can, by column name.
    :param capture: the capture, or None for a user's table.
    :param upgrade_problem: why its upgrade failed, or None.
    :param database: identity of the database.
    :param read_at: the database's clock when the row was read.
    """

    schema: str
    feed_id: int
    name: str
    kind: FeedKind
    shard_key_type: str
    table: str | None
    ulid_column: str | None
    shard_column: str | None
    info: FeedInfo
    key_collations: Mapping[str, str | None]
    refusals: Mapping[str, str] = field(default_factory=dict)
    capture: MssqlCapture | None = None
    upgrade_problem: str | None = None
    database: str = ""
    read_at: datetime = datetime.min

    def object(self, kind: str) -> str:
        """Return the name of one of the feed's objects, for example ``feed``."""
        return f"{quote(self.schema)}.{quote(f'{kind}:{self.name}')}"

    def call(self, procedure: str, arguments: Mapping[str, Any], suffix: str = "") -> tuple[Any, ...]:
        """
        Return the batch that calls a procedure for this feed, and its values, as :func:`call`.

        :param procedure: the feed's own, or one common to all feeds, which gets the feed's name.
        """
        if is_common(procedure):
            return call(self.schema, procedure, {"feed": self.name, **arguments}, suffix=suffix)
        return call(self.schema, f"{procedure}:{self.name}", arguments, self.shard_key_type, suffix)

    @property
    def upgrade_statement(self) -> str:
        """The statement that recreates the feed's objects."""
        kind = "blocking" if self.is_serialized else "outbox"
        table = literal(self.table or self.name)
        return f"exec {quote(self.schema)}.[upgrade_feed] @table_name = {table}, @{kind} = 1"

    @property
    def is_serialized(self) -> bool:
        """Whether writers get their ULIDs before they write."""
        return self.kind is FeedKind.SERIALIZED

    @cached_property
    def fed_keys(self) -> tuple[Column, ...]:
        """The key columns that ``feed:T`` and ``#read`` have besides ULID and shard."""
        ours = ("ulid", "shard_id") if self.is_serialized else ()
        return tuple(column for column in self.info.key_columns if column.name.lower() not in ours)

    def to_sql(self, shard: Shard) -> Shard:
        """
        Return a shard as a parameter.

        :raises InvalidArgumentError: the shard does not fit the feed's shard key type.
        """
        check_shard(shard, self.shard_key_type)
        if self.is_serialized and self.shard_column is None and shard != 0:
            raise InvalidArgumentError(
                f"feed {self.name!r} has a single shard, because its table has no column shard or shard_id; "
                f"use shard 0, not {shard_text(shard)}",
                feed=self.name,
                shard=shard,
            )
        return shard
