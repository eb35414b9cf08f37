# SPDX-License-Identifier: Apache-2.0
"""Connections to SQL Server: how they are opened, kept for the next call, and given up."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, TypeVar

from airflow_changefeed.core.times import floor_to_millisecond
from airflow_changefeed.exceptions import SourceUnavailableError
from airflow_changefeed.sources.mssql.connection.driver import Server, open_connection
from airflow_changefeed.sources.mssql.connection.errors import is_driver_error, name_error
from airflow_changefeed.sources.mssql.connection.retry import RetryPolicy, tell
from airflow_changefeed.sources.mssql.connection.session import Session, abandon

Answer = TypeVar("Answer")

MAX_LOCK_TIMEOUT = 86_400.0
#: Seconds after which a kept connection is closed: firewalls and fail-overs drop idle ones.
KEEP_SECONDS = 60.0
#: The same for a question that changes nothing, and so can be put again: longer than sensors mostly pause.
ASK_SECONDS = 600.0
#: Seconds for which a kept connection is used again without asking whether it still works (as HikariCP does).
TRUST_SECONDS = 0.5
#: Connections kept for the next calls; opening one costs ten times what most calls cost.
KEEP_CONNECTIONS = 8
_RETRY = RetryPolicy()


class MssqlDatabase:
    """
    A database of SQL Server, with the schema that changefeed is installed in.

    Connections are kept for the next call, of any thread and of any source over the same database: a call
    takes one for itself alone and gives it back. After a fork the child leaves its parent's alone and opens
    its own.

    :param lock_timeout: seconds to wait for locks, 0 to 86,400.
    :param read_only_replica: whether bulk reads say that they only read, so that the listener of an
        availability group may send them to a readable secondary.
    :param retry: how often what changes nothing, or may be done twice, is tried again.
    """

    def __init__(
        self,
        server: Server,
        schema: str,
        lock_timeout: float,
        *,
        read_only_replica: bool = False,
        retry: RetryPolicy = _RETRY,
    ) -> None:
        self.server = server
        self.schema = schema
        self.lock_timeout = lock_timeout
        self.read_only_replica = read_only_replica
        self.retry = retry

    def __repr__(self) -> str:
        return f"MssqlDatabase({self.server}, schema={self.schema!r})"

    @property
    def lock_timeout_ms(self) -> int:
        """The lock timeout in milliseconds."""
        return int(self.lock_timeout * 1000)

    def for_bulk_reads(self) -> MssqlDatabase:
        """
        Return where bulk reads go: here, or to a readable secondary of this database.

        What it holds may be older than what is here, so whoever reads looks first whether it has the seal
        (ADR 0005, R10). Its connections are kept apart from those to the primary.
        """
        if not self.read_only_replica:
            return self
        server = replace(self.server, is_read_only=True)
        return MssqlDatabase(server, self.schema, self.lock_timeout, retry=self.retry)

    @contextmanager
    def connect(self, **facts: Any) -> Iterator[Session]:
        """
        Lend a connection in autocommit; errors of the driver become ours.

        Opening one is tried again, as that changes nothing; what is done with it is not.

        :param facts: of the call, for errors: ``feed``, ``shard``, ``consumer``.
        :raises ConnectionNotUsableError: the server refuses the login, or the driver is not there; terminal.
        :raises SourceUnavailableError: the server does not answer, or the connection broke; transient.
        :raises LockTimeoutError: somebody holds a lock for longer than the lock timeout; transient.
        """
        with self._lend(self._take(facts), facts) as session:
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
                self._close_kept()
            if named is error:
                raise
            raise named from error
        self._give_back(session)

    def ask(self, question: Callable[[Session], Answer], **facts: Any) -> Answer:
        """
        Have a question answered that changes nothing, or may be put twice.

        A kept connection is not asked first whether it works. If it does not, the question is put at once to
        a new one; then as :attr:`retry` says, after a lost connection or a deadlock, never after a wait for a
        lock that was in vain.

        :param question: what to do with the connection.
        :param facts: as :meth:`connect`; errors, too.
        """

        def attempt() -> Answer:
            if (session := self._pop_fresh(ASK_SECONDS)) is not None:
                try:
                    return self._put(session, question, facts)
                except Exception as error:
                    is_lost = isinstance(error, SourceUnavailableError) or is_driver_error(error)
                    if not is_lost or self.retry.attempts == 1:
                        raise
                    tell(error, facts, "The pooled connection was stale; retrying at once on a new one")
            return self._put(self._open(), question, facts)

        return self.retry.call(attempt, **facts)

    def _put(self, session: Session, question: Callable[[Session], Answer], facts: dict[str, Any]) -> Answer:
        with self._lend(session, facts):
            if session.lock_timeout_ms != self.lock_timeout_ms:
                session.set_lock_timeout(self.lock_timeout_ms)
            return question(session)

    def now(self) -> datetime:
        """Return the database's clock."""
        ((now,),) = self.ask(lambda session: session.rows("select sysutcdatetime()"))
        return floor_to_millisecond(now.replace(tzinfo=timezone.utc))

    @property
    def _kept(self) -> deque[Session]:
        return _KEPT.setdefault(self.server, deque())

    def close(self) -> None:
        """Close the connections that are kept, those of other sources over the same database, too."""
        self._close_kept()
        if self.read_only_replica:
            self.for_bulk_reads().close()

    def _close_kept(self) -> None:
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

    def _take(self, facts: dict[str, Any]) -> Session:
        while (session := self._pop_fresh(KEEP_SECONDS)) is not None:
            if self._is_ready(session):
                return session
            session.close()
        return self.open(**facts)

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

    def open(self, *, is_for_work: bool = False, **facts: Any) -> Session:
        """
        Open a connection for the caller alone, who closes it; tried again as :attr:`retry` says.

        :param is_for_work: whether a consumer's own work runs on it, whose triggers and row-level security
            may read ``context_info``: it is left alone.
        :raises ChangefeedError: as :meth:`connect`.
        """
        return self.retry.call(lambda: self._open(is_for_work=is_for_work), **facts)

    def _open(self, *, is_for_work: bool = False) -> Session:
        session = Session(open_connection(self.server))
        # Whoever watches the server sees it there: the driver's own APP cannot be chosen.
        name = self.server.options.application_name.encode().hex()
        shown = "" if is_for_work else f"set context_info 0x{name}; "
        try:
            # English, as errors are known by their text.
            session.set_lock_timeout(
                self.lock_timeout_ms,
                "set nocount on; set language us_english; set transaction isolation level read committed; "
                f"{shown}",
            )
        except Exception as error:
            session.close()
            named = name_error(error, server=str(self.server))
            if named is error:
                raise
            raise named from error
        return session


#: Connections that no call uses, by where they go and as whom.
_KEPT: dict[Server, deque[Session]] = {}
