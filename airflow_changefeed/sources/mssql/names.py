# SPDX-License-Identifier: Apache-2.0
"""Names, literals and values as statements for SQL Server have them."""

from __future__ import annotations

from datetime import datetime

from airflow_changefeed.core.values import from_milliseconds, to_milliseconds
from airflow_changefeed.exceptions import InvalidArgumentError

DEFAULT_SCHEMA = "dbo"


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
            f"{table!r} is not a table name; write schema.table, or [schema].[table] if a name contains a "
            "dot",
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


def without_zone(time: datetime) -> datetime:
    """Return a time as a naive ``datetime2``: UTC, whole milliseconds."""
    return from_milliseconds(to_milliseconds(time)).replace(tzinfo=None)
