# SPDX-License-Identifier: Apache-2.0
"""Connections to SQL Server: how they are opened, kept for the next call, and given up."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypeVar

from airflow_changefeed.core.times import floor_to_millisecond
from airflow_changefeed.exceptions import ConnectionNotUsableError, SourceUnavailableError
from airflow_changefeed.sources.mssql.errors import is_driver_error, name_error
from airflow_changefeed.sources.mssql.retry import RetryPolicy
from airflow_changefeed.sources.mssql.session import Session, abandon

Answer = TypeVar("Answer")

MAX_LOCK_TIMEOUT = 86_400.0
#: Seconds that opening a connection may take.
LOGIN_TIMEOUT = 15
#: Seconds after which a kept connection is closed: firewalls and fail-overs drop idle ones.
KEEP_SECONDS = 60.0
#: The same for a question that changes nothing, and so can be put again: longer than sensors mostly pause.
ASK_SECONDS = 600.0
#: Seconds for which a kept connection is used again without asking whether it still works (as HikariCP does).
TRUST_SECONDS = 0.5
#: Connections kept for the next calls; opening one costs ten times what most calls cost.
KEEP_CONNECTIONS = 8
_INSTALL_DRIVER = "install it with: pip install 'airflow-changefeed[mssql]'"
_INSTALL_LIBRARIES = (
    "Microsoft's ODBC driver in it needs libraries of the system: apt-get install libltdl7 libkrb5-3 "
    "libgssapi-krb5-2 (or the same of another distribution)"
)


@dataclass(frozen=True)
class Server:
    r"""
    Where a database is, and as whom to go there.

    :param port: None lets the driver find it, as for ``host\instance``.
    :param encrypt: ``yes``, ``no`` or ``strict``.
    """

    host: str
    port: int | None
    database: str
    user: str
    password: str = field(repr=False)
    encrypt: str = "yes"
    trust_server_certificate: bool = False

    def __str__(self) -> str:
        return f"{self.host}{f',{self.port}' if self.port is not None else ''}/{self.database}"

    def keywords(self) -> dict[str, str]:
        """Return the driver's keywords; they hold the password."""
        return {
            "Server": self.host if self.port is None else f"{self.host},{self.port}",
            "Database": self.database,
            "UID": self.user,
            "PWD": self.password,
            "Encrypt": self.encrypt,
            "TrustServerCertificate": "yes" if self.trust_server_certificate else "no",
        }


class MssqlDatabase:
    """
    A database of SQL Server, with the schema that changefeed is installed in.

    Connections are kept for the next call, of any thread and of any source over the same database: a call
    takes one for itself alone and gives it back. After a fork the child leaves its parent's alone and opens
    its own.

    :param lock_timeout: seconds to wait for locks, 0 to 86,400.
    """

    def __init__(self, server: Server, schema: str, lock_timeout: float) -> None:
        self.server = server
        self.schema = schema
        self.lock_timeout = lock_timeout
        self.retry = RetryPolicy()

    def __repr__(self) -> str:
        return f"MssqlDatabase({self.server}, schema={self.schema!r})"

    @property
    def lock_timeout_ms(self) -> int:
        """The lock timeout in milliseconds."""
        return int(self.lock_timeout * 1000)

    @contextmanager
    def connect(self, **facts: Any) -> Iterator[Session]:
        """
        Lend a connection in autocommit; errors of the driver become ours.

        :param facts: of the call, for errors: ``feed``, ``shard``, ``consumer``.
        :raises ConnectionNotUsableError: the server refuses the login, or the driver is not there; terminal.
        :raises SourceUnavailableError: the server does not answer, or the connection broke; transient.
        :raises LockTimeoutError: somebody holds a lock for longer than the lock timeout; transient.
        """
        with self._lend(self._take(), facts) as session:
            yield session

    @contextmanager
    def _lend(self, session: Session, facts: dict[str, Any]) -> Iterator[Session]:
        """Lend this connection, and take it back."""
        try:
            yield session
        except BaseException as error:
            self._give_back(session)
            named = name_error(error, **facts)
            if isinstance(named, SourceUnavailableError):
                # What ended one has ended the others, too.
                self.close()
            if named is error:
                raise
            raise named from error
        self._give_back(session)

    def ask(self, question: Callable[[Session], Answer], **facts: Any) -> Answer:
        """
        Have a question answered that changes nothing, without asking first whether a kept connection works.

        If it does not, the question is put once more, on a new connection.

        :param question: what to do with the connection.
        :param facts: as :meth:`connect`; errors, too.
        """
        if (session := self._pop_fresh(ASK_SECONDS)) is not None:
            try:
                with self._lend(session, facts):
                    if session.lock_timeout_ms != self.lock_timeout_ms:
                        session.set_lock_timeout(self.lock_timeout_ms)
                    return question(session)
            except Exception as error:
                if not isinstance(error, SourceUnavailableError) and not is_driver_error(error):
                    raise
        with self._lend(self._open(), facts) as session:
            return question(session)

    def for_bulk_reads(self) -> MssqlDatabase:
        """Return the database that bulk reads use: this one."""
        return self

    def now(self) -> datetime:
        """Return the database's clock."""
        with self.connect() as session:
            ((now,),) = session.rows("select sysutcdatetime()")
        return floor_to_millisecond(now.replace(tzinfo=timezone.utc))

    @property
    def _kept(self) -> deque[Session]:
        return _KEPT.setdefault(self.server, deque())

    def close(self) -> None:
        """Close the connections that are kept, those of other sources over the same database, too."""
        while (session := self._pop()) is not None:
            session.close()

    def _pop(self) -> Session | None:
        """Take a kept connection that this process opened."""
        with suppress(IndexError):
            while True:
                session = self._kept.pop()
                if session.process == os.getpid():
                    return session
                abandon(session)
        return None

    def _pop_fresh(self, seconds: float) -> Session | None:
        """Take a kept connection that was used so many seconds ago at most; close those that were not."""
        while (session := self._pop()) is not None:
            if time.monotonic() - session.used_at < seconds:
                return session
            session.close()
        return None

    def _take(self) -> Session:
        while (session := self._pop_fresh(KEEP_SECONDS)) is not None:
            if self._is_ready(session):
                return session
            session.close()
        return self._open()

    def _is_ready(self, session: Session) -> bool:
        """Set this source's lock timeout on a kept connection, and say whether it still works."""
        is_trusted = time.monotonic() - session.used_at < TRUST_SECONDS
        if is_trusted and session.lock_timeout_ms == self.lock_timeout_ms:
            return True
        try:
            session.set_lock_timeout(self.lock_timeout_ms)
        except Exception as error:
            if not is_driver_error(error):
                raise
            return False
        return True

    def _give_back(self, session: Session) -> None:
        session.used_at = time.monotonic()
        if not session.is_broken and len(self._kept) < KEEP_CONNECTIONS:
            self._kept.append(session)
        else:
            session.close()

    def _open(self) -> Session:
        driver = _driver()
        try:
            connection = driver.connect(autocommit=True, timeout=LOGIN_TIMEOUT, **self.server.keywords())
            session = Session(connection)
            # English, as errors are known by their text.
            session.set_lock_timeout(
                self.lock_timeout_ms,
                "set nocount on; set language us_english; set transaction isolation level read committed; ",
            )
            return session
        except Exception as error:
            if _is_without_libraries(error):
                raise ConnectionNotUsableError(
                    f"the driver of SQL Server could not be loaded: {_INSTALL_LIBRARIES}"
                ) from error
            named = name_error(error, server=str(self.server))
            # Not chained: what the driver says of a connection it could not parse may hold the password.
            raise named from None


#: Connections that no call uses, by where they go and as whom.
_KEPT: dict[Server, deque[Session]] = {}


def _driver() -> Any:
    """Import the driver, without its pool: a forked child would share its connections with the parent."""
    try:
        import mssql_python
    except ModuleNotFoundError as error:
        raise ConnectionNotUsableError(
            f"mssql-python, the driver of SQL Server, is missing: {_INSTALL_DRIVER}"
        ) from error
    except (ImportError, OSError) as error:
        raise ConnectionNotUsableError(
            f"the driver of SQL Server could not be loaded ({error}): {_INSTALL_LIBRARIES}"
        ) from error
    mssql_python.pooling(enabled=False)
    return mssql_python


def _is_without_libraries(error: Exception) -> bool:
    text = str(error)
    return "Failed to load the driver" in text or "cannot open shared object" in text
