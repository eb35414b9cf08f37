# SPDX-License-Identifier: Apache-2.0
"""A feed as the statements for SQL Server see it: quoted names, typed parameters and the registry's row."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.feed import (
    Column,
    FeedInfo,
    FeedKind,
    Shard,
    check_shard,
    parse_shard,
    shard_text,
)
from airflow_changefeed.core.times import floor_to_millisecond
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import InvalidArgumentError

if TYPE_CHECKING:
    from airflow_changefeed.sources.mssql.registry import MssqlCapture

DEFAULT_SCHEMA = "dbo"
#: Types of the parameters that our procedures take; ``shard_id`` has the feed's shard key type.
_TYPES = {
    "ack": "binary(16)",
    "above": "bigint",
    "after": "binary(16)",
    "batch_rows": "int",
    "before": "datetime2(3)",
    "by": "nvarchar(256)",
    "ahead": "nvarchar(max)",
    "consumer": "nvarchar(128)",
    "cursor": "binary(16)",
    "dry_run": "bit",
    "expected_version": "bigint",
    "furthest": "binary(16)",
    "holder": "nvarchar(256)",
    "lease_token": "bigint",
    "lock_timeout": "int",
    "pagesize": "int",
    "parts": "int",
    "ranges": "varbinary(max)",
    "reason": "nvarchar(2000)",
    "rows": "bigint",
    "seconds": "float",
    "start_ulid": "binary(16)",
    "ulid": "binary(16)",
    "until": "datetime2(3)",
    "upto": "binary(16)",
    "blocking": "bit",
    "outbox": "bit",
    "shard_key_type": "sysname",
    "table_name": "nvarchar(max)",
    "time_tolerance_ms": "bigint",
    "table": "nvarchar(max)",
    "capture": "nvarchar(128)",
    "insert_columns": "nvarchar(max)",
    "update_columns": "nvarchar(max)",
    "delete_columns": "nvarchar(max)",
    "shard": "nvarchar(max)",
    "key_change": "varchar(15)",
    "keep_unchanged": "bit",
    "session_keys": "nvarchar(max)",
    "trace_key": "nvarchar(128)",
    "with_sequence": "bit",
    "guard_table": "bit",
    "guard_schema": "bit",
    "snapshot": "bit",
    "without": "nvarchar(max)",
    "note": "nvarchar(2000)",
    "resync": "bit",
    "resource_version": "bigint",
    "why": "nvarchar(2000)",
    "is_rewind": "bit",
    "settings": "nvarchar(max)",
    "begin_ulid": "binary(16)",
    "shards": "nvarchar(max)",
    "starts": "varbinary(max)",
    "tokens": "nvarchar(max)",
    "at_most": "int",
    "milliseconds": "int",
    "transaction_id": "bigint",
    "first_ulid": "binary(16)",
    "last_ulid": "binary(16)",
    "events": "bigint",
    "attempt": "int",
    "started_at": "datetime2(3)",
    "outcome": "varchar(10)",
    "error": "nvarchar(2000)",
    "parked_ulid": "binary(16)",
    "attempts": "int",
    "letter": "bigint",
    "keep": "bit",
    "limit": "int",
    "is_open": "bit",
    "number": "bigint",
    "state": "varchar(10)",
}


def quote(name: str) -> str:
    """Quote an identifier."""
    return "[" + name.replace("]", "]]") + "]"


def literal(text: str) -> str:
    """Quote a text."""
    return "N'" + text.replace("'", "''") + "'"


def split_name(table: str) -> tuple[str, str]:
    """
    Split a table's name into schema and table.

    :param table: ``schema.table``, split at the first dot; ``[a.b].[c]`` or ``"a.b"."c"`` where the names
        have dots of their own. Without a schema it is ``dbo``.
    :raises InvalidArgumentError: no such name; says how to write one.
    """
    parts = _quoted_parts(table) if table[:1] in ('"', "[") else table.split(".", 1)
    if not parts or len(parts) > 2 or not all(parts):
        raise InvalidArgumentError(
            f"{table!r} is no table's name: write schema.table, or [schema].[table] where a name has a dot",
            table=table,
        )
    return (parts[0], parts[1]) if len(parts) == 2 else (DEFAULT_SCHEMA, parts[0])


def _quoted_parts(table: str) -> list[str]:
    """Return the parts of a name whose first one is quoted; none where it is malformed."""
    parts: list[str] = []
    rest = table
    while rest:
        close = {"[": "]", '"': '"'}.get(rest[0])
        if close is None:
            return [*parts, rest]
        end = 1
        while (end := rest.find(close, end)) != -1 and rest[end : end + 2] == close * 2:
            end += 2
        if end == -1:
            return []
        parts.append(rest[1:end].replace(close * 2, close))
        rest = rest[end + 1 :]
        if rest and not (rest[0] == "." and len(rest) > 1):
            return []
        rest = rest[1:]
    return parts


def as_time(value: datetime) -> datetime:
    """Return a ``datetime2`` of the database, which is UTC without saying so."""
    return floor_to_millisecond(value.replace(tzinfo=timezone.utc))


@dataclass(frozen=True)
class MssqlFeed:
    """
    A feed, as its row in ``changefeed.feeds`` has it, and the names of its objects, quoted.

    :param schema: that changefeed is installed in.
    :param ulid_column: of the event table of serialized writers.
    :param shard_column: the same; None where the table keeps no shards apart.
    :param key_collations: of the key columns; None where they have none.
    :param refusals: why a column cannot be exported although its type could, by the column's name.
    :param capture: whose events it feeds; None where its table is the user's own.
    :param upgrade_problem: why it could not be brought to the installed version; None where it was.
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

    def object(self, kind: str) -> str:
        """Return the name of one of the feed's objects, for example ``feed``."""
        return f"{quote(self.schema)}.{quote(f'{kind}:{self.name}')}"

    def call(self, procedure: str, arguments: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
        """
        Return the batch that calls one of the feed's procedures, and its values.

        :param arguments: by name; one that is None keeps the procedure's default. A driver guesses a value's
            type, and no binary at all for a null; the declarations say it.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        return call_text(self.object(procedure), given, self.shard_key_type), tuple(given.values())

    @property
    def upgrade_statement(self) -> str:
        """The statement that makes the feed's objects again."""
        kind = "blocking" if self.is_serialized else "outbox"
        table = literal(self.table or self.name)
        return f"exec {quote(self.schema)}.[upgrade_feed] @table_name = {table}, @{kind} = 1"

    @property
    def is_serialized(self) -> bool:
        """Whether writers take their ULIDs before they write."""
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
                f"feed {self.name!r} keeps no shards apart, as its table has no column shard or shard_id: "
                f"use shard 0, not {shard_text(shard)}",
                feed=self.name,
                shard=shard,
            )
        return shard

    def from_sql(self, value: Any) -> Shard:
        """Return a shard from a column."""
        return value if isinstance(value, uuid.UUID) else parse_shard(value)


def call_text(procedure: str, names: Mapping[str, Any], shard_key_type: str = "int") -> str:
    """Return the batch that calls a procedure with named arguments, each a typed parameter."""
    types = {**_TYPES, "shard_id": shard_key_type}
    declarations = ", ".join(f"@{name} {types[name]} = ?" for name in names)
    arguments = ", ".join(f"@{name} = @{name}" for name in names)
    return f"{f'declare {declarations}; ' if names else ''}exec {procedure} {arguments}".rstrip()


def as_ulid(value: bytes | None) -> Ulid | None:
    """Return a ULID of a column; None for a null."""
    return None if value is None else Ulid.of_bytes(value)
