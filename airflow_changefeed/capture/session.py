# SPDX-License-Identifier: Apache-2.0
"""
What captures record about a writer: session variables and trace context.

For SQLite, which has neither sessions nor numbers of transactions, a transaction of its own::

    with transaction(connection, session_variables={"tenant": "a"}, traceparent=header):
        connection.execute("update flights set status = 'departed' where number = 'DY 620'")

For SQL Server, session variables. The session outlives its transactions and may return to a pool, so they
are cleared at the end of the block, even if it raises::

    with session_variables(connection, {"tenant": "a"}, traceparent=header):
        connection.cursor().execute("update flights set status = 'departed' where number = 'DY 620'")
        connection.commit()
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from airflow_changefeed.core.capture import MAX_SESSION_KEYS, TRACE_KEY
from airflow_changefeed.exceptions import InvalidArgumentError, LockTimeoutError
from airflow_changefeed.sources.sqlite.capture.drain import event_numbers, number_events

#: https://www.w3.org/TR/trace-context/#traceparent-header, version 00.
_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_NAME = 128
#: Maximum characters of nvarchar in a sql_variant.
_MAX_VALUE = 4000
#: A savepoint that exists as long as its transaction, no matter what ends it.
_MARK = '"changefeed.transaction"'
#: Parameter markers of the drivers' paramstyles.
_PARAMETERS = {"qmark": "?", "format": "%s", "pyformat": "%({name})s"}


@contextmanager
def transaction(
    connection: sqlite3.Connection,
    *,
    session_variables: Mapping[str, str] | None = None,
    traceparent: str | None = None,
) -> Iterator[sqlite3.Connection]:
    """
    Run a block as one transaction on SQLite, whose captured events share a ``tid``.

    Commits at the end, rolls back if the block raises. The block must not commit or roll back itself.

    :param connection: the writer's own, not in a transaction.
    :param session_variables: texts by name; each capture records its selection (``session_keys``).
    :param traceparent: W3C trace context, ``00-<trace id>-<parent id>-<flags>``; the session variable of that
        name.
    :raises InvalidArgumentError: an invalid name or value; a transaction is already open, or the block
        ended the transaction, so that its events have no ``tid``.
    :raises LockTimeoutError: another writer was busy for longer than the connection's timeout.
    """
    variables = _checked(session_variables, traceparent)
    _begin(connection)
    try:
        before = event_numbers(connection)
        connection.execute(f"savepoint {_MARK}")
        yield connection
        _end_mark(connection)
        number_events(connection, before, variables)
        connection.execute("commit")
    except BaseException:
        if connection.in_transaction:
            connection.execute("rollback")
        raise


def _begin(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        raise InvalidArgumentError(
            "the connection is already in a transaction; commit or roll it back first, or open the "
            "connection with isolation_level=None, which begins no transactions implicitly"
        )
    try:
        connection.execute("begin immediate")
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise LockTimeoutError(f"another writer was busy ({error}); retry") from error
        raise


def _end_mark(connection: sqlite3.Connection) -> None:
    try:
        connection.execute(f"release {_MARK}")
    except sqlite3.OperationalError as error:
        if "no such savepoint" not in str(error):
            raise
        raise InvalidArgumentError(
            "the transaction was committed or rolled back inside its block, so the block's events cannot be "
            "recorded as one transaction; let the end of the block commit or roll back"
        ) from None


@contextmanager
def session_variables(
    connection: Any, variables: Mapping[str, str] | None = None, *, traceparent: str | None = None
) -> Iterator[Any]:
    """
    Set session variables of SQL Server around a block, and clear them at its end, also when it raises.

    If they cannot be cleared, the connection is closed, so that its next user does not inherit them.

    :param connection: a DB-API connection of mssql-python, pyodbc or pymssql.
    :param variables: texts by name; each capture records its selection (``session_keys``).
    :param traceparent: as for :func:`transaction`.
    :raises InvalidArgumentError: an invalid name or value, or an unsupported kind of connection.
    """
    given = _checked(variables, traceparent)
    style = _style(connection)
    try:
        for name, value in given.items():
            _set(connection, style, {"key": name, "value": value})
        yield connection
    finally:
        _clear(connection, style, list(given))


def _clear(connection: Any, style: str, names: list[str]) -> None:
    """Clear variables, even on a connection whose transaction failed."""
    try:
        for name in names:
            _set(connection, style, {"key": name})
    except Exception:
        # The next user of this connection would write under this writer's name.
        with suppress(Exception):
            connection.close()
        raise


def _set(connection: Any, style: str, given: dict[str, str]) -> None:
    """Set a variable, or clear it without a value."""
    marks = {name: _PARAMETERS[style].format(name=name) for name in given}
    statement = (
        f"exec sys.sp_set_session_context @key = {marks['key']}, @value = {marks.get('value', 'null')}"
    )
    cursor = connection.cursor()
    try:
        cursor.execute(statement, given if style == "pyformat" else tuple(given.values()))
    finally:
        cursor.close()


def _style(connection: Any) -> str:
    if isinstance(connection, sqlite3.Connection):
        raise InvalidArgumentError("SQLite has no session variables; pass them to transaction()")
    package = type(connection).__module__.partition(".")[0]
    style = getattr(sys.modules.get(package), "paramstyle", None)
    if style not in _PARAMETERS:
        raise InvalidArgumentError(
            f"unsupported connection of module {type(connection).__module__}, paramstyle {style!r}; use "
            "mssql-python, pyodbc or pymssql"
        )
    return str(style)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _checked(variables: Mapping[str, str] | None, traceparent: str | None) -> dict[str, str]:
    given = dict(variables or {})
    problems = []
    if len(given) > MAX_SESSION_KEYS:
        problems.append(f"{len(given)} given; at most {MAX_SESSION_KEYS} can be set")
    for name, value in given.items():
        if not _is_text(name) or not 0 < len(name) <= _MAX_NAME:
            problems.append(f"the name {name!r} is not a text of 1 to {_MAX_NAME} characters")
        elif name.lower().startswith("changefeed."):
            problems.append(
                f"the name {name!r} begins with the reserved prefix 'changefeed.'; choose another"
            )
        if not _is_text(value) or len(value) > _MAX_VALUE or "\0" in value:
            # The value is not shown: it may be a secret.
            problems.append(f"the value of {name!r} is not a text of at most {_MAX_VALUE} characters")
    if traceparent is not None:
        if TRACE_KEY in given:
            problems.append(f"{TRACE_KEY} is given twice")
        if not _is_text(traceparent) or not _TRACEPARENT.fullmatch(traceparent):
            problems.append(
                f"traceparent {traceparent!r} is not a W3C trace context; expected 00-<32 hex>-<16 hex>-<2 "
                "hex> in lower case, with no id all zeros"
            )
        given[TRACE_KEY] = traceparent
    InvalidArgumentError.collect("session variables", problems)
    return given
