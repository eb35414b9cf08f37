# SPDX-License-Identifier: Apache-2.0
"""
Connections to SQL Server: opening, pooling, closing, and which calls are repeated with which pauses.

A call is repeated only if it changes nothing or may be repeated; the caller decides that. The failure must be
likely to pass, and must not have been waited for already.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, TypeVar

from airflow_changefeed.core.retry import Answer, growing, retry
from airflow_changefeed.core.values import floor_to_millisecond
from airflow_changefeed.exceptions import ChangefeedError, DeadlockError, SourceUnavailableError
from airflow_changefeed.sources.mssql.connection.errors import is_driver_error, name_error, naming_errors
from airflow_changefeed.sources.mssql.connection.session import Server, Session, abandon, open_connection

Item = TypeVar("Item")

log = logging.getLogger(__name__)

#: Facts of an error which show that it was waited for, so that callers do not retry as well.
_WAITED_FOR = frozenset({"attempts", "login_timeout"})


def may_pass(error: BaseException) -> bool:
    """Whether a retry may succeed soon; a lock is waited for only once."""
    if not isinstance(error, SourceUnavailableError | DeadlockError):
        return False
    return not _WAITED_FOR & error.facts.keys()


def log_retry(error: BaseException, facts: dict[str, Any], then: str) -> None:
    """Log a retry and its cause."""
    about = f"feed {facts['feed']!r}" if "feed" in facts else "SQL Server"
    log.warning("%s: %s: %s. %s", about, type(error).__name__, error, then)


@dataclass(frozen=True)
class RetryPolicy:
    """
    Retry policy: attempts, and doubling pauses with jitter.

    :param attempts: in total; 1 disables retries.
    :param first_pause: seconds, 0 or more; up to as much is added at random.
    :param longest_pause: seconds.
    :param seconds: since the first failure, after which no further attempt begins.
    """

    attempts: int = 4
    first_pause: float = 1.0
    longest_pause: float = 5.0
    seconds: float = 15.0

    def call(self, attempt: Callable[[], Answer], **facts: Any) -> Answer:
        """
        Call until success, a permanent failure, or the last attempt.

        :param attempt: changes nothing, or may be repeated.
        :param facts: what it is about, for the log: ``feed``.
        :raises ChangefeedError: the last failure, with the fact ``attempts``.
        """
        number = 1

        def before_pause(error: BaseException, pause: float) -> None:
            nonlocal number
            number += 1
            log_retry(error, facts, f"Attempt {number} of {self.attempts} in {pause:.1f} s")

        pauses = growing(self.first_pause, self.longest_pause)
        try:
            return retry(
                attempt,
                may_pass,
                pauses,
                attempts=self.attempts,
                seconds=self.seconds,
                before_pause=before_pause,
            )
        except ChangefeedError as error:
            if may_pass(error) and self.attempts > 1:
                error.facts["attempts"] = error.__dict__["attempts"] = number
            raise

    def resume(self, start: Callable[[], Iterator[Item]], **facts: Any) -> Generator[Item, None, None]:
        """
        Yield all items, restarting after a transient failure; each item resets the attempts.

        :param start: yields the items from the caller's position: the caller records each item before
            requesting the next one, and ``start`` begins after it.
        :param facts: as :meth:`call`.
        :raises ChangefeedError: as :meth:`call`.
        """
        items: Iterator[Item] | None = None

        def following() -> tuple[Item] | None:
            nonlocal items
            if items is None:
                items = start()
            try:
                for item in items:
                    return (item,)
            except BaseException:
                items = None
                raise
            return None

        try:
            while (found := self.call(following, **facts)) is not None:
                yield found[0]
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()


#: Seconds after which a pooled connection is closed: firewalls and fail-overs drop idle ones.
KEEP_SECONDS = 60.0
#: The same for a query that changes nothing and can be retried: longer than sensors usually pause.
ASK_SECONDS = 600.0
#: Seconds for which a pooled connection is reused without a liveness check (as in HikariCP).
TRUST_SECONDS = 0.5
#: Maximum pooled connections; opening one costs ten times as much as most calls.
KEEP_CONNECTIONS = 8
_RETRY = RetryPolicy()


class MssqlDatabase:
    """
    A database of SQL Server, with the schema that changefeed is installed in.

    Connections are pooled for all threads and all sources over the same database: a call takes one
    exclusively and returns it. After a fork the child does not touch its parent's connections and opens its
    own.

    :param lock_timeout: seconds to wait for locks, 0 to 86,400.
    :param read_only_replica: whether bulk reads declare read-only intent, so that the listener of an
        availability group may route them to a readable secondary.
    :param retry: retries of calls that change nothing or may be repeated.
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
        Return the database for bulk reads: this one, or a readable secondary of it.

        A secondary may lag, so readers first check whether it has the seal (ADR 0005, R10). Its connections
        are pooled separately from those to the primary.
        """
        if not self.read_only_replica:
            return self
        server = replace(self.server, is_read_only=True)
        return MssqlDatabase(server, self.schema, self.lock_timeout, retry=self.retry)

    @contextmanager
    def connect(self, **facts: Any) -> Iterator[Session]:
        """
        Lend a connection in autocommit; driver errors are translated.

        Opening is retried, because it changes nothing; what is done with the connection is not.

        :param facts: of the call, for errors: ``feed``, ``shard``, ``consumer``.
        :raises ConnectionNotUsableError: the server refuses the login, or the driver is not installed.
        :raises SourceUnavailableError: the server does not answer, or the connection broke.
        :raises LockTimeoutError: another session holds a lock for longer than the lock timeout.
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
                # What broke one connection broke the others too.
                self._close_kept()
            if named is error:
                raise
            raise named from error
        self._give_back(session)

    def ask(self, question: Callable[[Session], Answer], **facts: Any) -> Answer:
        """
        Run a query that changes nothing or may be repeated.

        A pooled connection is not checked first. If it is broken, the query is retried at once on a new one;
        then as :attr:`retry` says, after a lost connection or a deadlock, but never after a lock timeout.

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
                    log_retry(
                        error, facts, "The pooled connection was stale; retrying at once on a new connection"
                    )
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
        """Close the pooled connections, including those of other sources over the same database."""
        self._close_kept()
        if self.read_only_replica:
            self.for_bulk_reads().close()

    def _close_kept(self) -> None:
        while (session := self._pop()) is not None:
            session.close()

    def _pop(self) -> Session | None:
        """Take a pooled connection opened by this process."""
        with suppress(IndexError):
            while True:
                session = self._kept.pop()
                if session.process == os.getpid():
                    return session
                abandon(session)
        return None

    def _pop_fresh(self, seconds: float) -> Session | None:
        """Take a pooled connection used recently enough; close older ones."""
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
        """Set this source's lock timeout on a pooled connection; return whether it still works."""
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
        Open a connection that the caller closes; retried as :attr:`retry` says.

        :param is_for_work: whether a consumer's work runs on it; ``context_info`` is then left to its
            triggers and row-level security.
        :raises ChangefeedError: as :meth:`connect`.
        """
        return self.retry.call(lambda: self._open(is_for_work=is_for_work), **facts)

    def _open(self, *, is_for_work: bool = False) -> Session:
        session = Session(open_connection(self.server))
        # Shows the application to those who monitor the server; the driver's own APP cannot be set.
        name = self.server.options.application_name.encode().hex()
        shown = "" if is_for_work else f"set context_info 0x{name}; "
        try:
            # English, as errors are known by their text.
            with naming_errors(server=str(self.server)):
                session.set_lock_timeout(
                    self.lock_timeout_ms,
                    "set nocount on; set language us_english; set transaction isolation level read "
                    f"committed; {shown}",
                )
        except Exception:
            session.close()
            raise
        return session


#: Idle connections, by server and login.
_KEPT: dict[Server, deque[Session]] = {}
