# SPDX-License-Identifier: Apache-2.0
"""From an Airflow connection to the description of a source, one function for each type of connection."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.values import IN_EXTRA
from airflow_changefeed.exceptions import ConnectionNotUsableError, InvalidArgumentError, TerminalError

if TYPE_CHECKING:
    from airflow.sdk import Connection

#: What the fields of a SQL Server's connection are called in Airflow; the others are options of the extra.
_FIELDS = {
    "host": "host",
    "port": "port",
    "database": "schema (the database)",
    "user": "login",
    "password": "password",
    "schema": f"changefeed_schema{IN_EXTRA}",
}


def find_connection(
    conn_id: str, remedy: str, error: type[TerminalError] = ConnectionNotUsableError
) -> Connection:
    """
    Return one of Airflow's connections.

    :param remedy: what to do if there is none.
    :param error: raised then.
    """
    from airflow_changefeed.version_compat import AirflowNotFoundException, BaseHook

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise error(
            f"Airflow has no connection {conn_id!r} (an empty text in a secrets backend counts as none): "
            f"{remedy}",
            conn_id=conn_id,
        ) from None


def describe_sqlite(connection: Connection) -> dict[str, Any]:
    """
    Find the file that Airflow's ``SqliteHook`` opens for the same connection, and the forms in which that one
    fails.

    A path in *host* is taken as it stands. A URI without host (``sqlite:///data/feeds.db``) means
    ``/data/feeds.db``. Of the extra, ``lock_timeout`` is read.

    :raises ConnectionNotUsableError: it names no file.
    :raises InvalidArgumentError: the extra has a value that means nothing.
    """
    from airflow_changefeed.sources.sqlite.connection import read_connection

    host, schema = connection.host or "", connection.schema or ""
    path = "/".join(filter(None, [host, schema])) if host else f"/{schema.lstrip('/')}" if schema else ""
    if not path:
        raise ConnectionNotUsableError(
            f"connection {connection.conn_id!r} of type sqlite has no file: put its path into the field host",
            conn_id=connection.conn_id,
        )
    given = {"path": path, "lock_timeout": connection.extra_dejson.get("lock_timeout")}
    described, _, problems = read_connection(given, IN_EXTRA)
    _refuse(connection, [], problems)
    return described


def describe_mssql(connection: Connection) -> dict[str, Any]:
    """
    Take the fields that Airflow's ``MsSqlHook`` takes, and of the extra only what is named here.

    ``encrypt`` (yes, no, strict), ``trust_server_certificate`` and ``read_only_replica`` (yes, no),
    ``changefeed_schema``, ``lock_timeout``, and all
    :data:`~airflow_changefeed.sources.mssql.connection.options.DRIVER_OPTIONS`. Other entries of the extra
    are for other drivers and are ignored.

    :raises ConnectionNotUsableError: fields are missing; all that is wrong is named.
    :raises InvalidArgumentError: the extra has values that mean nothing; all are named.
    """
    from airflow_changefeed.sources.mssql.connection.options import (
        CONNECTION,
        DRIVER_OPTIONS,
        read_connection,
    )

    extra = connection.extra_dejson
    given = {
        **{name: extra.get(name) for name in CONNECTION if name not in _FIELDS},
        "host": connection.host,
        **({"port": connection.port} if connection.port else {}),
        "database": connection.schema,
        "user": connection.login,
        "password": connection.password,
        "schema": extra.get("changefeed_schema"),
        "driver_options": {name: extra.get(name) for name in DRIVER_OPTIONS},
    }
    described, missing, problems = read_connection(given, IN_EXTRA, _FIELDS)
    _refuse(connection, missing, problems)
    return described


def _refuse(connection: Connection, missing: list[str], problems: list[str]) -> None:
    """Raise one error with everything that is wrong with a connection."""
    subject, facts = f"connection {connection.conn_id!r}", {"conn_id": connection.conn_id}
    if missing:
        more = f". And {'; '.join(problems)}" if problems else ""
        raise ConnectionNotUsableError(
            f"{subject} of type mssql lacks {', '.join(missing)}: fill in the fields{more}", **facts
        )
    if problems:
        raise InvalidArgumentError(f"{subject}: {'; '.join(problems)}", problems=problems, **facts)


#: Type of a connection to the function that describes it; one for each of ``sources.SOURCES``.
DESCRIBE: dict[str, Callable[[Connection], dict[str, Any]]] = {
    "mssql": describe_mssql,
    "sqlite": describe_sqlite,
}
