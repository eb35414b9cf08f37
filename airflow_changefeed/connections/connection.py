# SPDX-License-Identifier: Apache-2.0
"""From an Airflow connection to the description of a source: its extra checked, its secrets masked."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

from airflow_changefeed.core.values import IN_EXTRA
from airflow_changefeed.exceptions import ConnectionNotUsableError, InvalidArgumentError, TerminalError
from airflow_changefeed.version_compat import redact

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
    """Return one of Airflow's connections; raise an error with the remedy if it does not exist."""
    from airflow_changefeed.version_compat import AirflowNotFoundException, BaseHook

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        raise error(
            f"Airflow has no connection {conn_id!r} (an empty text in a secrets backend counts as no "
            f"connection): {remedy}",
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


_SECRET_NAME = re.compile(
    "auth(?!entication)|cookie|credential|connection_string|header|key|pass|proxy|pwd|sas|secret|sign|token",
    re.IGNORECASE,
)
# Keys of object stores contain slashes, and signed URLs a query.
_USER_INFO, _QUERY = re.compile(r"//[^\s'\"]*@"), re.compile(r"(://[^\s'\"?]*)\?[^\s'\"]*")
# Masked, they would be missing everywhere.
_NO_SECRETS = ("true", "false")
# As Airflow does: shorter ones are part of many words.
_LEAST_SECRET = 5
_PRIVATE = 0o077


class _Cleaning(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self.secrets: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            said = record.getMessage()
        except (TypeError, ValueError):
            return True  # whose arguments do not fit; the handler says so
        text = said
        for secret in sorted(self.secrets.copy(), key=len, reverse=True):
            text = text.replace(secret, "***")
        if text != said:
            record.msg, record.args = text, None
        return True


_CLEANING = _Cleaning()


def hide_secrets(extra: Mapping[str, Any]) -> None:
    """
    Let Airflow mask what is secret in an extra wherever it logs.

    Airflow itself masks a connection's password, and its extra as a whole. Libraries that log at debug level
    reveal parts of it: a token in the URL of a request, a key in a header. Airflow's masks hold for the
    log of a task, and not for the copy of it that executors write to their own output; so what libraries log
    is also cleaned in this process.

    :param extra: of a connection; values below a secret's name are secret, at whatever depth.
    """
    from airflow.sdk.log import mask_secret

    for secret in _secrets(extra, is_secret=False):
        # A URL quotes it.
        for text in sorted({secret, quote(secret), quote(secret, safe=""), quote_plus(secret)}):
            mask_secret(text)
            if len(text) >= _LEAST_SECRET:
                _CLEANING.secrets.add(text)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_CLEANING)


def _secrets(value: object, *, is_secret: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _secrets(each, is_secret=is_secret or bool(_SECRET_NAME.search(str(name))))
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _secrets(each, is_secret=is_secret)
    elif isinstance(value, str) and is_secret and value.lower() not in _NO_SECRETS:
        yield value


def without_secrets(text: str) -> str:
    """
    Mask the secrets that Airflow knows, and user information and queries of URLs, in a text.

    Masks rather too much than too little.
    """
    return _QUERY.sub(r"\1?***", _USER_INFO.sub("//***@", str(redact(text))))


def clean_values(value: Any) -> Any:
    """Return JSON values whose texts have passed :func:`without_secrets`."""
    if isinstance(value, dict):
        return {name: clean_values(part) for name, part in value.items()}
    if isinstance(value, list):
        return [clean_values(part) for part in value]
    return without_secrets(value) if isinstance(value, str) else value


@contextmanager
def private_files() -> Iterator[None]:
    """
    Let files that are made meanwhile be for their owner alone.

    Spark's provider writes the keytab of a connection's extra into the temporary folder, for all to read.
    """
    before = os.umask(_PRIVATE)
    try:
        yield
    finally:
        os.umask(before)
