# SPDX-License-Identifier: Apache-2.0
"""The extra of a storage connection: its known fields, and a refusal of all others."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_changefeed.exceptions import ConnectionNotUsableError

if TYPE_CHECKING:
    from airflow.sdk import Connection


def unusable(connection: Connection, why: str) -> ConnectionNotUsableError:
    """Return the error that a connection cannot be used; ``why`` never holds a value of it."""
    return ConnectionNotUsableError(
        f"connection {connection.conn_id!r} of type {connection.conn_type} cannot be used for an output: "
        f"{why}",
        conn_id=connection.conn_id,
    )


def read_extra(connection: Connection, known: Collection[str]) -> dict[str, Any]:
    """
    Return the fields of a connection's extra, without those left blank.

    :param known: names of the fields; the form's old prefix ``extra__TYPE__`` is taken off.
    :raises ConnectionNotUsableError: a field is not known; names it and what is; terminal.
    """
    prefix = f"extra__{connection.conn_type}__"
    extra: Mapping[str, Any] = connection.extra_dejson
    fields = {name: value for name, value in extra.items() if value not in (None, "")}
    old = {name.removeprefix(prefix): value for name, value in fields.items() if name.startswith(prefix)}
    new = {name: value for name, value in fields.items() if not name.startswith(prefix)}
    found = {**old, **new}
    unknown = sorted(set(found) - set(known))
    if unknown:
        near = get_close_matches(unknown[0], known, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise unusable(
            connection,
            f"its extra has unknown fields: {', '.join(map(repr, unknown))}{hint}; known are "
            f"{', '.join(sorted(known))}",
        )
    return found


def as_object(connection: Connection, name: str, value: object) -> dict[str, Any]:
    """
    Return a field whose value is a JSON object, or the text of one.

    :raises ConnectionNotUsableError: it is neither; terminal.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, dict):
        raise unusable(connection, f"{name} in its extra is not a JSON object")
    return value


def read_file(connection: Connection, name: str, path: str) -> str:
    """
    Return the content of a file that a field names; read here, as Spark's executors may not have it.

    :raises ConnectionNotUsableError: it cannot be read; terminal.
    """
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        what = problem.strerror if isinstance(problem, OSError) else "it is not text"
        raise unusable(
            connection, f"the file that {name} in its extra names cannot be read here: {what}"
        ) from None
