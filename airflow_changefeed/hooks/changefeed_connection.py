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
_IN_EXTRA = " in its extra"


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
            f"connection {connection.conn_id!r} of type sqlite has no file: put its path into the field host",
            conn_id=connection.conn_id,
        )
    # A Spark job may run in another folder than this process.
    return {"path": str(Path(path).expanduser().absolute())}


def describe_mssql(connection: Connection) -> dict[str, Any]:
    """
    Take the fields that Airflow's ``MsSqlHook`` takes, and of the extra only what is named here.

    ``encrypt`` (yes, no, strict), ``trust_server_certificate`` and ``read_only_replica`` (yes, no),
    ``changefeed_schema``, and all
    :data:`~airflow_changefeed.sources.mssql.connection.options.DRIVER_OPTIONS`. Other entries of the extra
    are for other drivers and are ignored.

    :raises ConnectionNotUsableError: fields are missing; all that is wrong is named.
    :raises InvalidArgumentError: the extra has values that mean nothing; all are named.
    """
    from airflow_changefeed.sources.mssql.connection.options import (
        DRIVER_OPTIONS,
        encryption_problems,
        missing_login,
        read_encrypt,
        read_flag,
        read_options,
    )

    extra = connection.extra_dejson
    given = {name: extra[name] for name in DRIVER_OPTIONS if name in extra}
    options, problems = read_options(given, among=_IN_EXTRA)
    read: dict[str, Any] = {}
    for name, reader, default in (
        ("encrypt", read_encrypt, "yes"),
        ("trust_server_certificate", read_flag, False),
        ("read_only_replica", read_flag, False),
    ):
        try:
            read[name] = default if extra.get(name) in (None, "") else reader(extra[name])
        except ValueError as problem:
            problems.append(f"{name}{_IN_EXTRA} must be {problem}, not {extra[name]!r}")
    if len(read) == 3:
        problems += encryption_problems(read["encrypt"], read["trust_server_certificate"], options)
    user, password = connection.login or "", connection.password or ""
    fields = {"host": connection.host, "schema (the database)": connection.schema}
    missing = [name for name, value in fields.items() if not value]
    missing += missing_login(options, user, password)
    _refuse(connection, missing, problems)
    return {
        "host": connection.host,
        "port": connection.port or (None if "\\" in (connection.host or "") else _DEFAULT_MSSQL_PORT),
        "database": connection.schema,
        "user": user,
        "password": password,
        "schema": str(extra.get("changefeed_schema") or "changefeed"),
        "encrypt": read["encrypt"],
        "trust_server_certificate": read["trust_server_certificate"],
        **({"read_only_replica": True} if read["read_only_replica"] else {}),
        **({"driver_options": options.given()} if options.given() else {}),
    }


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
