# SPDX-License-Identifier: Apache-2.0
"""Names, literals and values as statements for SQL Server have them, and typed calls of procedures."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from airflow_changefeed.core.times import floor_to_millisecond
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import InvalidArgumentError

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
    "fencing_token": "bigint",
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
    "dead_letter": "bigint",
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


def call_text(procedure: str, names: Mapping[str, Any], shard_key_type: str = "int") -> str:
    """Return the batch that calls a procedure with named arguments, each a typed parameter."""
    types = {**_TYPES, "shard_id": shard_key_type}
    declarations = ", ".join(f"@{name} {types[name]} = ?" for name in names)
    arguments = ", ".join(f"@{name} = @{name}" for name in names)
    return f"{f'declare {declarations}; ' if names else ''}exec {procedure} {arguments}".rstrip()


def as_ulid(value: bytes | None) -> Ulid | None:
    """Return a ULID of a column; None for a null."""
    return None if value is None else Ulid.of_bytes(value)
