# SPDX-License-Identifier: Apache-2.0
"""The step of a consumer on SQL Server: its work and its cursor in one transaction; dead letters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_changefeed.core.consumer import (
    Attempt,
    Consumption,
    DeadLetter,
    DeadLetterState,
    Invocation,
    Parked,
)
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.exceptions import (
    ChangefeedError,
    ConsumerUseError,
    DeadLetterError,
    LeaseLostError,
    SourceUnavailableError,
    StaleVersionError,
    WorkTransactionError,
)
from airflow_changefeed.sources.mssql.connection.errors import is_driver_error, name_error, thrown
from airflow_changefeed.sources.mssql.connection.pool import MssqlDatabase
from airflow_changefeed.sources.mssql.connection.session import Record, Session, abandon
from airflow_changefeed.sources.mssql.cursors import cursor_row
from airflow_changefeed.sources.mssql.feed.catalog import MssqlCalls, call_feed, call_for_all, load_feed
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.names import without_zone
from airflow_changefeed.sources.shared import dead_letter, invocation

if TYPE_CHECKING:
    import mssql_python


class MssqlDeadLetters(MssqlCalls):
    """The part of the source that keeps dead letters and the invocation log."""

    def dead_letters(
        self, feed: str | None = None, consumer: str | None = None, *, is_open: bool = True
    ) -> list[DeadLetter]:
        arguments = {"consumer": consumer, "is_open": int(is_open)}
        rows = chain(*self._ask_feeds(feed, "list_dead_letters", arguments))
        return sorted(map(dead_letter, rows), key=lambda letter: letter.number)

    def resolve_dead_letter(
        self,
        number: int,
        state: DeadLetterState,
        *,
        by: str,
        note: str | None = None,
        resource_version: int | None = None,
    ) -> DeadLetter:
        arguments = {"state": state.value, "by": by, "note": note, "resource_version": resource_version}
        return self._resolve("resolve_dead_letter", number, arguments)

    def park_again(self, number: int, parked: Parked) -> DeadLetter:
        arguments = {"attempts": parked.attempts, "reason": parked.reason}
        return self._resolve("park_again", number, arguments)

    def _resolve(self, procedure: str, number: int, arguments: Record) -> DeadLetter:
        schema = self.database.schema
        with self.database.connect(dead_letter=number) as session:
            results = call_for_all(session, schema, "list_dead_letters", {"number": number, "is_open": 0})
            present = next(chain(*results), None)
            if present is None:
                raise DeadLetterError(
                    f"dead letter {number} not found; list them: {shell('dead-letters list')}",
                    number=number,
                )
            found = load_feed(session, schema, present["feed"])
            ((row,),) = call_feed(session, found, procedure, {"number": number, **arguments})
        return dead_letter(row)

    def invocations(
        self, feed: str, consumer: str, *, shard: Shard | None = None, limit: int = 100
    ) -> list[Invocation]:
        def arguments(found: MssqlFeed) -> Record:
            of = None if shard is None else shard_text(found.to_sql(shard))
            return {"consumer": consumer, "shard": of, "limit": limit}

        (rows,) = self._ask(feed, "list_invocations", arguments, consumer=consumer)
        return [invocation(feed, row) for row in rows]

    def purge_invocations(self, feed: str, consumer: str, *, before: datetime) -> int:
        arguments = {"consumer": consumer, "before": without_zone(before)}
        ((row,),) = self._change(feed, "purge_invocations", arguments, consumer=consumer)
        return int(row["rows"])


def attempt_arguments(attempt: Attempt) -> Record:
    """Return an attempt as the arguments of the procedures that log it."""
    return {
        "first_ulid": attempt.first.bytes,
        "last_ulid": attempt.last.bytes,
        "events": attempt.events,
        "attempt": attempt.number,
        "started_at": without_zone(attempt.started_at),
        "outcome": attempt.outcome.value,
        "error": attempt.error,
    }


def parked_arguments(parked: Parked) -> Record:
    """Return a parked event as arguments of ``consume_events``."""
    return {"parked_ulid": parked.ulid.bytes, "attempts": parked.attempts, "reason": parked.reason}


#: Resets what the work may have set on the connection, then begins a numbered transaction. If the work ends
#: it, it continues in an implicit one, which does not commit by itself.
_BEGIN = (
    "set nocount on; set xact_abort on; set implicit_transactions off; set rowcount 0; "
    "set language us_english; "
    "set transaction isolation level read committed; set lock_timeout {lock_timeout_ms}; begin transaction; "
    "set implicit_transactions on; select current_transaction_id()"
)
#: Commits if it is still the same transaction and not doomed; otherwise rolls back. No parameters: a batch
#: with parameters runs like a procedure, which must not end a transaction it did not begin (266).
_COMMIT = (
    "if @@trancount = 1 and xact_state() = 1 and current_transaction_id() = {transaction_id} "
    "begin commit transaction; set implicit_transactions off; select 1 end "
    "else begin if @@trancount > 0 rollback transaction; set implicit_transactions off; select 0 end"
)
_ROLLBACK = "if @@trancount > 0 rollback transaction"
_END = f"{_ROLLBACK}; set implicit_transactions off"
#: The driver's message for unread results on a connection.
_BUSY = "busy with results for another command"
_Find = Callable[[Shard], CursorRow | None]


class MssqlConsumerSession:
    """
    Implements :class:`~airflow_changefeed.sources.base_consumers.ConsumerSession`.

    The connection is the driver's, in autocommit, so its own ``commit()`` and ``rollback()`` do nothing; the
    transaction is begun and committed by T-SQL. Pairs of ``begin transaction`` and ``commit`` within it, and
    savepoints, are the work's own affair. Any error that makes the server roll back (``xact_abort`` is on)
    ends it, whether or not the work catches it.

    :param find: reads a shard's cursor row, for errors.
    """

    def __init__(self, database: MssqlDatabase, feed: MssqlFeed, consumer: str, find: _Find) -> None:
        self._database = database
        self._feed = feed
        self._consumer = consumer
        self._find = find
        self._facts: dict[str, Any] = {"feed": feed.name, "consumer": consumer}
        self._who = f"consumer {consumer!r} of feed {feed.name!r}"
        self._session: Session | None = None
        #: Of the open transaction, or None.
        self._transaction_id: int | None = None

    @property
    def connection(self) -> mssql_python.Connection:
        return (self._connected() if self._transaction_id is None else self._working()).connection

    def _working(self) -> Session:
        """Return the connection of the transaction; on another one, work would commit by itself."""
        if self._session is None or self._session.connection.closed:
            raise self._ended()
        return self._session

    def _connected(self) -> Session:
        session = self._session
        if session is not None and session.process != os.getpid():
            abandon(session)
            session = None
        if session is None or session.connection.closed:
            session = self._session = self._database.open(is_for_work=True, **self._facts)
        return session

    @contextmanager
    def transaction(self) -> Iterator[None]:
        if self._transaction_id is not None:
            raise ConsumerUseError(f"{self._who}: its transaction is already open", **self._facts)
        self._transaction_id = self._begin()
        try:
            yield
            self._commit(self._transaction_id)
        except BaseException as error:
            self._undo()
            named = self._named(error)
            if named is error:
                raise
            raise named from error
        finally:
            self._transaction_id = None

    def _begin(self) -> int:
        """Begin; a lost connection is replaced once, because nothing was done yet."""
        is_kept = self._session is not None
        while True:
            try:
                session = self._connected()
                if not session.connection.autocommit:
                    session.connection.autocommit = True
                ((number,),) = session.rows(_BEGIN.format(lock_timeout_ms=self._database.lock_timeout_ms))
                return int(number)
            except Exception as error:
                self.close()
                named = name_error(error, **self._facts)
                if not (is_kept and isinstance(named, SourceUnavailableError)):
                    if named is error:
                        raise
                    raise named from error
                is_kept = False

    def _commit(self, transaction_id: int) -> None:
        session = self._working()
        try:
            ((is_done,),) = session.rows(_COMMIT.format(transaction_id=transaction_id))
        except Exception as error:
            named = name_error(error, **self._facts)
            if not isinstance(named, SourceUnavailableError):
                raise
            raise SourceUnavailableError(
                f"{self._who}: the connection was lost during the commit, so the outcome is unknown. "
                "Read the cursor: it moved if and only if the work was committed",
                **self._facts,
                is_unknown=True,
            ) from error
        if not is_done:
            raise self._ended()

    def _ended(self) -> WorkTransactionError:
        return WorkTransactionError(
            f"{self._who}: the work committed or rolled back, left a nested transaction open, closed "
            "the connection, or suppressed an error that ended its transaction. Everything that the "
            "work did not commit itself was rolled back. Leave begin, commit and rollback to the "
            "consumer (savepoints are allowed), and let errors propagate",
            **self._facts,
        )

    def _undo(self, sql: str = _END) -> None:
        """Leave nothing open; discard a connection that fails to roll back."""
        if self._session is not None:
            # Not every server need keep what was prepared in a transaction that is rolled back.
            self._session.forget_prepared()
            try:
                self._session.execute(sql)
            except Exception:
                self.close()

    def _named(self, error: BaseException) -> BaseException:
        """Return our error for a transient or thrown one; the work's own errors stay unchanged."""
        if not is_driver_error(error):
            return error
        if _BUSY in str(error):
            return ConsumerUseError(
                f"{self._who}: nothing was consumed: the work left unread rows in a cursor; close that "
                "database cursor",
                **self._facts,
            )
        named = name_error(error, **self._facts)
        is_ours = isinstance(named, ChangefeedError) and (named.transient or thrown(error) is not None)
        return named if is_ours else error

    def consume(self, step: Consumption) -> CursorRow:
        if self._transaction_id is None:
            raise ConsumerUseError(f"{self._who}: call consume() inside a transaction() block", **self._facts)
        session = self._working()
        try:
            ((row,),) = call_feed(session, self._feed, "consume_events", self._arguments(step))
        except Exception as error:
            raise self._refusal(error, step) from error
        return cursor_row(self._feed.name, row)

    def _arguments(self, step: Consumption) -> dict[str, Any]:
        return {
            "consumer": self._consumer,
            "shard_id": self._feed.to_sql(step.shard),
            "upto": step.upto.bytes,
            "fencing_token": step.fencing_token,
            "seconds": float(step.seconds),
            "expected_version": step.expected_version,
            "transaction_id": self._transaction_id,
            **({} if step.attempt is None else attempt_arguments(step.attempt)),
            **({} if step.parked is None else parked_arguments(step.parked)),
            "dead_letter": step.dead_letter,
        }

    def _refusal(self, error: Exception, step: Consumption) -> BaseException:
        """Return why a step was refused, with the conflicting row; everything is rolled back by now."""
        self._undo(_ROLLBACK)
        named = self._named(error)
        if isinstance(named, ConsumerUseError):
            return named
        asked = {"expected_version": step.expected_version, "fencing_token": step.fencing_token}
        named = name_error(error, **{**self._facts, "shard": step.shard, **asked})
        if isinstance(named, LeaseLostError | StaleVersionError):
            with suppress(ChangefeedError):
                if (row := self._find(step.shard)) is not None:
                    present = {"row": row, "present_version": row.resource_version}
                    return type(named)(named.message, **{**named.facts, **present})
        return named

    def log(self, steps: Sequence[Consumption], *, holder: str) -> None:
        # On another connection: the session's own may have failed.
        with self._database.connect(**self._facts) as session:
            for step in steps:
                if step.attempt is not None:
                    arguments = {
                        "consumer": self._consumer,
                        "shard": shard_text(self._feed.to_sql(step.shard)),
                        "fencing_token": step.fencing_token,
                        "holder": holder,
                        **attempt_arguments(step.attempt),
                    }
                    call_feed(session, self._feed, "log_attempt", arguments)

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None and session.process != os.getpid():
            abandon(session)
        elif session is not None:
            with suppress(Exception):
                # Explicitly, because a server notices a closed connection only later.
                session.execute(_END)
            session.close()
