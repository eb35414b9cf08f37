# SPDX-License-Identifier: Apache-2.0
"""
What is alike for all clouds: the fields of a connection's extra, and credentials that renew themselves.

Storage options are handed on as JSON, so they cannot hold such credentials. Instead an option may be an
object with the key ``make``, which names a function of a cloud, and its arguments: how to get credentials,
not the credentials themselves, which would have expired before a long export ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow_changefeed.core.values import IN_EXTRA, Fields, flag, number, read_fields, whole
from airflow_changefeed.exceptions import ConnectionNotUsableError

if TYPE_CHECKING:
    from airflow.sdk import Connection


class Cloud(NamedTuple):
    """
    A cloud's credentials, and what each library calls them.

    :param extra: of this package, which installs what opens its paths.
    :param schemes: of the paths that its connections open.
    :param fields: what its file system of fsspec takes.
    :param fsspec: takes an Airflow connection and the path of an output; returns fsspec's options, as JSON
        values. Raises ConnectionNotUsableError.
    :param object_store: takes fsspec's options, and removes those that it translates into options of the Rust
        crate ``object_store``. Raises TableError.
    :param rust_schemes: of the paths that ``object_store`` opens.
    :param makers: of credentials that renew themselves.
    """

    extra: str
    schemes: tuple[str, ...]
    fields: Fields
    fsspec: Callable[[Connection, str], dict[str, Any]]
    object_store: Callable[[dict[str, Any]], dict[str, Any]]
    rust_schemes: tuple[str, ...]
    makers: tuple[Callable[..., Any], ...] = ()


def made_once(maker: Callable[..., Any], value: Mapping[str, Any]) -> Any:
    """
    Return the credentials that an option describes.

    Created once per process: fsspec shares a file system if it gets the same objects.
    """
    return _made(maker, json.dumps(value, sort_keys=True), os.getpid())


@lru_cache(maxsize=64)
def _made(maker: Callable[..., Any], text: str, _process: int) -> Any:
    return maker(**{name: value for name, value in json.loads(text).items() if name != "make"})


#: Of every file system of fsspec; those of its own for ports and time-outs are called so.
FSSPEC: Fields = {
    "listings_expiry_time": number(unit="seconds"),
    "max_paths": whole(0),
    "port": whole(0, 65_535),
    "skip_instance_cache": flag,
    "timeout": number(unit="seconds"),
    "use_listings_cache": flag,
}


def unusable(connection: Connection, why: str) -> ConnectionNotUsableError:
    """Return the error that a connection cannot be used; ``why`` never holds a secret of it."""
    return ConnectionNotUsableError(
        f"connection {connection.conn_id!r} of type {connection.conn_type} cannot be used for an output: "
        f"{why}",
        conn_id=connection.conn_id,
    )


def read_extra(connection: Connection, fields: Fields) -> dict[str, Any]:
    """
    Return the fields of a connection's extra, without those left blank.

    :param fields: all that there are; the form's old prefix ``extra__TYPE__`` is taken off.
    :raises ConnectionNotUsableError: a field is not known, or cannot be read; all are named.
    """
    prefix = f"extra__{connection.conn_type}__"
    extra: Mapping[str, Any] = connection.extra_dejson
    given = {name: value for name, value in extra.items() if value not in (None, "")}
    old = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
    new = {name: value for name, value in given.items() if not name.startswith(prefix)}
    found, problems = read_fields({**old, **new}, fields, IN_EXTRA)
    unknown = sorted(set(found) - set(fields))
    if unknown:
        near = get_close_matches(unknown[0], fields, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        problems.insert(
            0,
            f"its extra has unknown fields: {', '.join(map(repr, unknown))}{hint}; known are "
            f"{', '.join(sorted(fields))}",
        )
    if problems:
        raise unusable(connection, "; ".join(problems))
    return found


def read_options(connection: Connection, fields: Fields) -> dict[str, Any]:
    """Return the extra of a connection that is for fsspec, flags and numbers read; all problems at once."""
    found, problems = read_fields(connection.extra_dejson, {**FSSPEC, **fields}, IN_EXTRA)
    if problems:
        raise unusable(connection, "; ".join(problems))
    return found


def read_file(connection: Connection, name: str, path: str) -> str:
    """Return the content of a file that a field names; read here, as Spark's executors may not have it."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as problem:
        what = problem.strerror if isinstance(problem, OSError) else "the file is not text"
        raise unusable(
            connection, f"the file that {name} in its extra names cannot be read here: {what}"
        ) from None
