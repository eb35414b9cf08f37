# SPDX-License-Identifier: Apache-2.0
"""From an Airflow connection to the description of a source, one function for each type of connection."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_changefeed.exceptions import ConnectionNotUsableError, InvalidArgumentError

if TYPE_CHECKING:
    from airflow.sdk import Connection

_DEFAULT_MSSQL_PORT = 1433
_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


def describe_sqlite(connection: Connection) -> dict[str, Any]:
    """
    Find the file that Airflow's ``SqliteHook`` opens for the same connection, and the forms in which that one
    fails.

    A path in *host* is taken as it stands. A URI without host (``sqlite:///data/feeds.db``) means
    ``/data/feeds.db``.
    """
    host, schema = connection.host or "", connection.schema or ""
    path = "/".join(filter(None, [host, schema])) if host else f"/{schema.lstrip('/')}" if schema else ""
    if not path:
        raise ConnectionNotUsableError(
            f"connection {connection.conn_id!r} of type sqlite names no file: put its path into the field "
            "host",
            conn_id=connection.conn_id,
        )
    # A Spark job may run in another folder than this process.
    return {"path": str(Path(path).expanduser().absolute())}


def describe_mssql(connection: Connection) -> dict[str, Any]:
    """
    Take the fields that Airflow's ``MsSqlHook`` takes, and of the extra only what is named here.

    ``encrypt`` (yes, no, strict), ``trust_server_certificate`` (yes, no) and ``changefeed_schema``. What the
    extra holds besides is for other drivers, and goes nowhere.
    """
    fields = {"host": connection.host, "schema (the database)": connection.schema, "login": connection.login}
    missing = [name for name, value in fields.items() if not value]
    if missing:
        raise ConnectionNotUsableError(
            f"connection {connection.conn_id!r} of type mssql lacks {', '.join(missing)}: fill in the fields",
            conn_id=connection.conn_id,
        )
    extra = connection.extra_dejson
    return {
        "host": connection.host,
        "port": connection.port or (None if "\\" in (connection.host or "") else _DEFAULT_MSSQL_PORT),
        "database": connection.schema,
        "user": connection.login,
        "password": connection.password or "",
        "schema": str(extra.get("changefeed_schema") or "changefeed"),
        "encrypt": _encrypt(connection, extra.get("encrypt", "yes")),
        "trust_server_certificate": _flag(
            connection, "trust_server_certificate", extra.get("trust_server_certificate", "no")
        ),
    }


def _encrypt(connection: Connection, value: Any) -> str:
    text = str(value).lower()
    return text if text == "strict" else "yes" if _flag(connection, "encrypt", value, "strict") else "no"


def _flag(connection: Connection, name: str, value: Any, *others: str) -> bool:
    """Read a flag of the extra, in JSON's spelling or in that of a URI."""
    text = str(value).lower()
    if text not in _FLAGS:
        words = ", ".join(["yes", "no", *others])
        raise InvalidArgumentError(
            f"connection {connection.conn_id!r}: {name} in its extra must be one of {words}, not {value!r}",
            conn_id=connection.conn_id,
        )
    return _FLAGS[text]


#: Type of a connection to the function that describes it; one for each of ``sources.SOURCES``.
DESCRIBE: dict[str, Callable[[Connection], dict[str, Any]]] = {
    "mssql": describe_mssql,
    "sqlite": describe_sqlite,
}
