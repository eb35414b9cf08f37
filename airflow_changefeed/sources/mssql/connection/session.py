# SPDX-License-Identifier: Apache-2.0
"""One connection to SQL Server by Microsoft's driver: opening it, queries, and a forked child."""

from __future__ import annotations

import os
import re
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_changefeed.exceptions import ConnectionNotUsableError, SourceUnavailableError
from airflow_changefeed.sources.mssql.connection.errors import hidden, is_driver_error, name_error
from airflow_changefeed.sources.mssql.connection.options import DEFAULT_PORT, DEFAULTS, DriverOptions

if TYPE_CHECKING:
    import mssql_python
    import pyarrow as pa

    from airflow_changefeed.sources.mssql.feed.feed import MssqlCapture


Record = dict[str, Any]
#: A result: names of its columns, and rows.
Result = tuple[list[str], list[tuple[Any, ...]]]
#: Statements that a connection keeps prepared.
_KEEP_PREPARED = 16


class Session:
    """A connection in autocommit."""

    def __init__(self, connection: mssql_python.Connection) -> None:
        self._connection = connection
        self.process = os.getpid()
        self.used_at = time.monotonic()
        self.lock_timeout_ms: int | None = None
        self.is_broken = False
        #: Cached columns of each feed's table, by the feed's key.
        self.columns: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
        #: The captures among the feeds, likewise.
        self.captures: dict[tuple[str, int, str], MssqlCapture] = {}
        #: Cursors of prepared statements, by text; the one used last comes last.
        self._prepared: dict[str, mssql_python.Cursor] = {}
        _LIVE.add(self)

    @property
    def connection(self) -> mssql_python.Connection:
        """The driver's own connection."""
        return self._connection

    def execute(self, sql: str, *values: Any, is_kept: bool = False) -> list[Result]:
        """
        Run a batch to its end, because an error may follow its results.

        :param values: of the parameters ``?``.
        :param is_kept: whether a batch with parameters stays prepared, for the next time. To release it is a
            request of its own.
        :return: column names and rows of each result that has columns.
        """
        with self._prepared_cursor(sql) if is_kept and values else self._cursor() as cursor:
            results = []
            if values:
                cursor.execute(sql, values)
            else:
                cursor.execute(sql)
            while True:
                if cursor.description:
                    names = [column[0] for column in cursor.description]
                    results.append((names, [tuple(row) for row in cursor.fetchall()]))
                if not cursor.nextset():
                    return results

    @contextmanager
    def _cursor(self) -> Iterator[mssql_python.Cursor]:
        """Lend a cursor; after an error the connection's state is unknown."""
        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except BaseException:
            self.is_broken = True
            raise

    @contextmanager
    def _prepared_cursor(self, sql: str) -> Iterator[mssql_python.Cursor]:
        """Lend the cursor of a statement, which the driver prepares once; closed after an error."""
        cursor = self._prepared.pop(sql, None)
        try:
            cursor = cursor or self._connection.cursor()
            yield cursor
        except BaseException:
            self.is_broken = True
            with suppress(Exception):
                if cursor is not None:
                    cursor.close()
            raise
        self._prepared[sql] = cursor
        if len(self._prepared) > _KEEP_PREPARED:
            try:
                self._prepared.pop(next(iter(self._prepared))).close()
            except Exception:
                # This statement has run; the connection serves no other.
                self.is_broken = True

    def forget_prepared(self) -> None:
        """Release the prepared statements."""
        while self._prepared:
            _, cursor = self._prepared.popitem()
            with suppress(Exception):
                cursor.close()

    def set_lock_timeout(self, milliseconds: int, first: str = "") -> None:
        """
        Set the lock timeout.

        :param first: SQL sent before it, in the same batch.
        """
        # A literal: T-SQL documents no variable here.
        self.execute(f"{first}set lock_timeout {milliseconds}")
        self.lock_timeout_ms = milliseconds

    def rows(self, sql: str, *values: Any, is_kept: bool = False) -> list[tuple[Any, ...]]:
        """Return the rows of a batch with one result."""
        results = self.execute(sql, *values, is_kept=is_kept)
        return results[0][1] if results else []

    def results(self, sql: str, *values: Any, is_kept: bool = False) -> list[list[Record]]:
        """Return the rows of each result, by column name."""
        return [as_records(result) for result in self.execute(sql, *values, is_kept=is_kept)]

    def records(self, sql: str, *values: Any, is_kept: bool = False) -> list[Record]:
        """Return the rows of a batch with one result, or of all together, by column name."""
        return [row for rows in self.results(sql, *values, is_kept=is_kept) for row in rows]

    def insert(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        """Run an insert once for each row."""
        with self._cursor() as cursor:
            cursor.executemany(sql, rows)

    def arrow_batches(
        self, sql: str, values: tuple[Any, ...], next_rows: Callable[[], int]
    ) -> Iterator[pa.RecordBatch]:
        """
        Fetch the single result of a batch as non-empty Arrow batches.

        :param next_rows: maximum rows of the next one.
        """
        with self._cursor() as cursor:
            cursor.execute(sql, values)
            while (batch := cursor.arrow_batch(next_rows())).num_rows:
                yield batch
            # An error may follow the rows.
            cursor.nextset()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block as one transaction, which any error rolls back."""
        self.execute("set xact_abort on; begin transaction")
        try:
            yield
            self.execute("commit transaction")
        except BaseException:
            # Explicitly, because a server notices a closed connection only later.
            with suppress(Exception):
                self.execute("if @@trancount > 0 rollback transaction")
            raise

    def close(self) -> None:
        """Close the connection; ignores one already broken."""
        with suppress(Exception):
            self._connection.close()


def as_records(result: Result) -> list[Record]:
    """Return the rows of a result, by column name."""
    names, rows = result
    return [dict(zip(names, row, strict=True)) for row in rows]


#: All open connections; referenced across a fork, because the child's interpreter drops objects of other
#: threads, which would close them. And those of the parent process, which a child must not use or close.
_LIVE: weakref.WeakSet[Session] = weakref.WeakSet()
_HELD: list[Session] = []
_ABANDONED: list[Session] = []

os.register_at_fork(
    before=lambda: _HELD.extend(_LIVE),
    after_in_parent=_HELD.clear,
    after_in_child=lambda: _ABANDONED.extend(_HELD),
)


def abandon(session: Session) -> None:
    """Keep a parent's connection forever: closing it here would end the parent's session."""
    _ABANDONED.append(session)


#: Timeout in seconds for probing a port after the driver could not connect.
_LOOK_SECONDS = 3.0
_INSTALL_DRIVER = "install it with: pip install 'airflow-changefeed[mssql]'"
_INSTALL_LIBRARIES = (
    "its ODBC driver needs system libraries: apt-get install libltdl7 libkrb5-3 libgssapi-krb5-2 (or your "
    "distribution's equivalents)"
)
_INSTALL_IDENTITY = "install the Entra ID libraries with: pip install azure-identity"
#: Driver messages for a failed connection before the login.
_UNREACHABLE = re.compile(
    r"tcp provider|login timeout|timeout expired|network-related|prelogin|handshakes before login|"
    r"unable to complete login",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Server:
    r"""
    The address of a database, and the login to use.

    :param port: None lets the driver find it, as for ``host\instance``.
    :param encrypt: ``yes``, ``no`` or ``strict``.
    :param is_read_only: whether connections declare read-only intent, so that a listener may route them
        to a readable secondary.
    """

    host: str
    port: int | None
    database: str
    user: str
    password: str = field(repr=False)
    encrypt: str = "yes"
    trust_server_certificate: bool = False
    options: DriverOptions = DEFAULTS
    is_read_only: bool = False

    def __str__(self) -> str:
        return f"{self.host}{f',{self.port}' if self.port is not None else ''}/{self.database}"

    def keywords(self) -> dict[str, str]:
        """Return the driver's keywords; they hold the password."""
        login = {"UID": self.user, "PWD": self.password} if self.options.takes_login and self.user else {}
        if not self.options.needs_login:
            # A managed identity is given by its client id and has no password.
            login.pop("PWD", None)
        intent = {"ApplicationIntent": "ReadOnly"} if self.is_read_only else {}
        return {
            "Server": self.host if self.port is None else f"{self.host},{self.port}",
            "Database": self.database,
            **login,
            "Encrypt": self.encrypt,
            "TrustServerCertificate": "yes" if self.trust_server_certificate else "no",
            **self.options.keywords(),
            **intent,
        }


def load_driver() -> Any:
    """Import the driver, without its pool: a forked child would share connections with its parent."""
    try:
        import mssql_python
    except ModuleNotFoundError as error:
        raise ConnectionNotUsableError(
            f"mssql-python, the SQL Server driver, is not installed; {_INSTALL_DRIVER}"
        ) from error
    except (ImportError, OSError) as error:
        raise ConnectionNotUsableError(
            f"the SQL Server driver could not be loaded ({error}): {_INSTALL_LIBRARIES}"
        ) from error
    mssql_python.pooling(enabled=False)
    return mssql_python


def open_connection(server: Server) -> Any:
    """
    Open a connection in autocommit.

    :raises ConnectionNotUsableError: the driver is incomplete, or the server or Entra ID refuses.
    :raises SourceUnavailableError: the server does not answer. The fact ``login_timeout``
        means that the driver tried for that many seconds.
    """
    driver = load_driver()
    timeout = server.options.login_timeout
    start = time.monotonic()
    try:
        return driver.connect(autocommit=True, timeout=timeout, **server.keywords())
    except Exception as error:
        seconds = time.monotonic() - start
        # Not chained: the driver's message for an unparsable connection may contain the password.
        raise _name(error, server, seconds) from None


def _name(error: Exception, server: Server, seconds: float) -> BaseException:
    """Return our error for a failed connection, without the password."""
    text = str(error)
    if "Failed to load the driver" in text or "cannot open shared object" in text:
        return ConnectionNotUsableError(f"the SQL Server driver could not be loaded: {_INSTALL_LIBRARIES}")
    if "libraries are not installed" in text:
        return ConnectionNotUsableError(f"{server}: {_INSTALL_IDENTITY}", server=str(server))
    named = name_error(error, secret=server.password, server=str(server))
    if named is error:
        # A driver error we do not know may pass; a Python error is an argument the driver rejects.
        kind = SourceUnavailableError if is_driver_error(error) else ConnectionNotUsableError
        return kind(f"{server}: {hidden(text, server.password)}; check the connection", server=str(server))
    if not isinstance(named, SourceUnavailableError):
        return named
    facts = dict(named.facts)
    if seconds >= 0.9 * server.options.login_timeout:
        facts["login_timeout"] = server.options.login_timeout
    found = probe(server) if _UNREACHABLE.search(named.message) else None
    return SourceUnavailableError(f"{named.message}{f'. {found}' if found else ''}", **facts)


def probe(server: Server) -> str | None:
    """Say how far a connection gets, as the driver only reports a number. None for a named instance."""
    host = server.host.removeprefix("tcp:")
    if "\\" in host:
        return None
    name, _, port_text = host.partition(",")
    port = server.port or (int(port_text) if port_text.strip().isdigit() else DEFAULT_PORT)
    try:
        with socket.create_connection((name, port), timeout=_LOOK_SECONDS):
            return f"Something is listening on {name} port {port}; check that it is a healthy SQL Server"
    except socket.gaierror:
        return f"The name {name!r} cannot be resolved here; check the host of the connection"
    except ConnectionRefusedError:
        return f"Nothing is listening on {name} port {port}; check the port, and that the server is running"
    except OSError as error:
        reason = "in time" if isinstance(error, TimeoutError) else f"({error.strerror or error})"
        return f"{name} port {port} does not answer {reason}; check host, port and firewalls"
