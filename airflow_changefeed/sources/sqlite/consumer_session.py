# SPDX-License-Identifier: Apache-2.0
"""The step of a consumer on SQLite: its work and its cursor in one transaction; dead letters."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Any

from airflow_changefeed.core.consumer import Consumption, DeadLetter, DeadLetterState, Invocation, Parked
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import (
    ConsumerUseError,
    DeadLetterError,
    ShardNotFoundError,
    WorkTransactionError,
)
from airflow_changefeed.sources.base_control import stale
from airflow_changefeed.sources.shared import ATTEMPT, as_row, dead_letter, invocation
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.cursors import CURSORS, SETTINGS, key_of, refusal
from airflow_changefeed.sources.sqlite.feed.names import load_feed
from airflow_changefeed.sources.sqlite.feed.reader import check_beyond
from airflow_changefeed.sources.sqlite.records import Records

LETTERS = Records("dead_letter", dead_letter, "number")
_BY_ULID = Records("dead_letter", dead_letter, "ulid")
_LOG = Records("invocation", lambda row: invocation(row["feed"], row), "number desc")
_IS_OPEN = "state in ('parked', 'retry')"


class SqliteDeadLetters:
    """The part of the source that keeps dead letters and the invocation log."""

    database: SqliteDatabase

    def dead_letters(
        self, feed: str | None = None, consumer: str | None = None, *, is_open: bool = True
    ) -> list[DeadLetter]:
        with self.database.connect() as connection:
            if feed is not None:
                load_feed(connection, feed)
            where = {"feed": feed, "consumer": consumer}
            return LETTERS.find(connection, where, also=_IS_OPEN if is_open else "")

    def resolve_dead_letter(
        self,
        number: int,
        state: DeadLetterState,
        *,
        by: str,
        note: str | None = None,
        resource_version: int | None = None,
    ) -> DeadLetter:
        with self.database.connect() as connection, self.database.write(connection):
            letter = open_dead_letter(connection, number)
            end = (
                {} if state.is_open else {"resolved_at": self.database.now(), "resolved_by": by, "note": note}
            )
            changed = change_letter(connection, letter, {"state": state, **end}, resource_version)
            if not changed and resource_version is not None:
                raise stale(
                    f"dead letter {number} of consumer {letter.consumer!r}, feed {letter.feed!r}",
                    resource_version,
                    letter.resource_version,
                    f"{letter.state.value}, attempts: {letter.attempts}",
                )
            return changed[0]

    def park_again(self, number: int, parked: Parked) -> DeadLetter:
        with self.database.connect() as connection, self.database.write(connection):
            letter = open_dead_letter(connection, number)
            # The log from which they are counted may have been purged meanwhile.
            attempts = max(parked.attempts, letter.attempts + 1)
            values = {"state": DeadLetterState.PARKED, "attempts": attempts, "reason": parked.reason}
            return LETTERS.change(connection, {"number": number}, values)[0]

    def invocations(
        self, feed: str, consumer: str, *, shard: Shard | None = None, limit: int = 100
    ) -> list[Invocation]:
        with self.database.connect() as connection:
            load_feed(connection, feed)
            where = {"feed": feed, "consumer": consumer, "shard": shard}
            return _LOG.find(connection, where, limit=limit)

    def purge_invocations(self, feed: str, consumer: str, *, before: datetime) -> int:
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            return _LOG.remove(connection, {"feed": feed, "consumer": consumer, "ended_at <": before})


def park(
    connection: sqlite3.Connection, key: Mapping[str, object], parked: Parked, now: datetime, *, by: str
) -> None:
    """
    Make an event a dead letter; one that was resolved, and comes again after a cursor was set back, is open
    again.

    :param key: of :func:`key_of`.
    """
    event, why = {**key, "ulid": parked.ulid}, {"attempts": parked.attempts, "reason": parked.reason}
    values = {"state": DeadLetterState.PARKED, **why, "parked_at": now, "parked_by": by}
    is_open_again = {"resolved_at_ms": None, "resolved_by": None, "note": None}
    if not LETTERS.change(connection, event, {**values, **is_open_again}):
        LETTERS.add(connection, {**event, **values})


def change_letter(
    connection: sqlite3.Connection,
    letter: DeadLetter,
    values: Mapping[str, object],
    expected_version: int | None = None,
) -> list[DeadLetter]:
    """
    Change an open dead letter, and let its consumer's ack go on if that closes it.

    :return: the letter as it is now; empty if it is not at the version.
    """
    key = {"number": letter.number}
    changed = LETTERS.change(connection, key, values, expected_version=expected_version)
    is_closed = any(not now.state.is_open for now in changed)
    for row in CURSORS.find(connection, key_of(letter)) if is_closed else ():
        ack = {"ack": ack_of(connection, row, row.ulid)}
        CURSORS.change(connection, key_of(row), ack, keeps_version=True)
    return changed


def ack_of(connection: sqlite3.Connection, row: CursorRow, upto: Ulid) -> Ulid:
    """Return the ack of a consumer at a cursor: below its first open dead letter; it never goes back."""
    held = _BY_ULID.find(connection, key_of(row), also=_IS_OPEN, limit=1)
    return max(row.ack, min([upto, *(letter.ulid.previous() for letter in held)]))


def open_dead_letter(connection: sqlite3.Connection, number: int) -> DeadLetter:
    """
    Return an open dead letter.

    :raises DeadLetterError: it does not exist, or was resolved.
    """
    letters = LETTERS.find(connection, {"number": number})
    if not letters:
        raise DeadLetterError(
            f"dead letter {number} not found; list them: {shell('dead-letters list')}",
            number=number,
        )
    if not letters[0].state.is_open:
        raise DeadLetterError(
            f"dead letter {number} was already resolved as {letters[0].state.value} by "
            f"{letters[0].resolved_by!r}; nothing was changed",
            number=number,
            dead_letter=letters[0],
        )
    return letters[0]


def log_step(
    connection: sqlite3.Connection, key: Mapping[str, object], step: Consumption, now: datetime, holder: str
) -> None:
    """Write the attempt of a step into the log, if it has one."""
    if step.attempt is not None:
        of = {"ended_at": now, "holder": holder, "fencing_token": step.fencing_token}
        _LOG.add(connection, {**key, **as_row(step.attempt, ATTEMPT), **of})


#: Marks our own transaction statements, which a consumer's work must not use.
_BEGIN = "begin immediate -- changefeed"
_COMMIT = "commit -- changefeed"
_ROLLBACK = "rollback -- changefeed"
#: What writes nothing by itself.
_READS = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
    sqlite3.SQLITE_PRAGMA,
}


class SqliteConsumerSession:
    """
    Implements :class:`~airflow_changefeed.sources.base_consumers.ConsumerSession`.

    SQLite has one writer at a time: while work is in its transaction, nobody else writes.
    """

    def __init__(self, database: SqliteDatabase, consumer: str, feed: str) -> None:
        self._database = database
        self._consumer = consumer
        self._feed = feed
        self._stack = ExitStack()
        self._open: sqlite3.Connection | None = None
        self._is_ours = False
        self._was_refused = False
        self._is_begun = False

    @property
    def connection(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = self._stack.enter_context(self._database.connect())
            self._open.set_authorizer(self._authorize)
        return self._open

    def _authorize(self, action: int, *_: str | None) -> int:
        """
        Refuse ``begin``, ``commit`` and ``rollback`` of the work; savepoints are its own.

        Refuse to write, too, once an error has ended the transaction: it would be committed by itself.
        """
        if self._is_ours or action in _READS:
            return sqlite3.SQLITE_OK
        is_over = self._is_begun and self._open is not None and not self._open.in_transaction
        if action != sqlite3.SQLITE_TRANSACTION and not is_over:
            return sqlite3.SQLITE_OK
        self._was_refused = True
        return sqlite3.SQLITE_DENY

    def _say(self, sql: str) -> None:
        # SQLite authorizes a statement only when it prepares it; the comments distinguish ours from the
        # work's.
        self._is_ours = True
        try:
            self.connection.execute(sql)
        finally:
            self._is_ours = False

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._was_refused = False
        with self._database.named_errors():
            self._say(_BEGIN)
            self._is_begun = True
            # If an error ends the transaction, and the work swallows it, its next write begins another one,
            # which is refused; else it would commit by itself.
            self.connection.isolation_level = "IMMEDIATE"
            try:
                yield
                self._check_work()
                self._say(_COMMIT)
            except BaseException as error:
                self._roll_back()
                if self._was_refused and not isinstance(error, WorkTransactionError):
                    raise self._ended() from error
                raise
            finally:
                self._is_begun = False
                if self._open is not None:
                    self._open.isolation_level = None

    def _roll_back(self) -> None:
        if self._is_in_transaction():
            self._say(_ROLLBACK)

    def _check_work(self) -> None:
        if self._was_refused or not self._is_in_transaction():
            raise self._ended()

    def _is_in_transaction(self) -> bool:
        try:
            return self._open is not None and self._open.in_transaction
        except sqlite3.ProgrammingError:
            # The work closed it; a new one is made for the next transaction.
            self.close()
            return False

    def _ended(self) -> WorkTransactionError:
        return WorkTransactionError(
            f"consumer {self._consumer!r} of feed {self._feed!r}: the work committed, rolled back or "
            "began a transaction, closed the connection, or suppressed an error that ended its "
            "transaction. Nothing was consumed. Leave begin, commit and rollback to the consumer "
            "(savepoints are allowed)",
            consumer=self._consumer,
            feed=self._feed,
        )

    def consume(self, step: Consumption) -> CursorRow:
        if not self._is_begun:
            raise ConsumerUseError("call consume() inside a transaction() block")
        self._check_work()
        try:
            return self._consume(step)
        except BaseException:
            # At once, so that nothing of the work stays where the work catches this.
            self._roll_back()
            raise

    def _consume(self, step: Consumption) -> CursorRow:
        connection, key = self.connection, self._key(step)
        tables = load_feed(connection, self._feed)
        row = self._row(connection, step)
        now, holder = self._database.now(), str(row.lease_holder)
        upto = max(step.upto, row.ulid)
        if step.parked is not None:
            # First, as it holds the ack; undone where the step is refused.
            park(connection, key, step.parked, now, by=holder)
        values = {
            "ulid": row.frontier.complete(UlidRange(row.ulid, upto)).upto,
            "ack": ack_of(connection, row, upto),
            "moved_at": now,
            "moved_by": holder,
            "lease_expires": self._database.later(step.seconds),
        }
        moved = CURSORS.change(
            connection,
            {**key, "lease_holder is not": None},
            values,
            expected_version=step.expected_version,
            fencing_token=step.fencing_token,
        )
        if not moved:
            raise refusal(row, step.expected_version, step.fencing_token, "; register again")
        check_beyond(tables, step.shard, upto)
        log_step(connection, key, step, now, holder)
        if step.dead_letter is None:
            return moved[0]
        letter = open_dead_letter(connection, step.dead_letter)
        done = {"state": DeadLetterState.DONE, "resolved_at": now, "resolved_by": holder}
        change_letter(connection, letter, done)
        return self._row(connection, step)

    def _key(self, step: Consumption) -> dict[str, Any]:
        return {"feed": self._feed, "consumer": self._consumer, "shard": step.shard}

    def _row(self, connection: sqlite3.Connection, step: Consumption) -> CursorRow:
        for row in CURSORS.find(connection, self._key(step)):
            return row
        raise ShardNotFoundError(
            f"consumer {self._consumer!r} has no cursor for shard {shard_text(step.shard)} of feed "
            f"{self._feed!r}; the consumer was dropped, or never acquired the shard",
            consumer=self._consumer,
            feed=self._feed,
            shard=step.shard,
        )

    def log(self, steps: Sequence[Consumption], *, holder: str) -> None:
        with self._database.connect() as connection, self._database.write(connection):
            load_feed(connection, self._feed)
            now, where = self._database.now(), {"feed": self._feed, "consumer": self._consumer}
            for step in steps if SETTINGS.find(connection, where) else []:
                log_step(connection, self._key(step), step, now, holder)

    def close(self) -> None:
        stack, self._stack, self._open = self._stack, ExitStack(), None
        stack.close()
