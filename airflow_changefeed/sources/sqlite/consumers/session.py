# SPDX-License-Identifier: Apache-2.0
"""The step of a consumer on SQLite: its work and its cursor in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from airflow_changefeed.core.consumer import Consumption, DeadLetterState
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.exceptions import ConsumerUseError, ShardNotFoundError, WorkTransactionError
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.consumers.cursor_rows import CURSORS, SETTINGS, refusal
from airflow_changefeed.sources.sqlite.consumers.dead_letters import (
    ack_of,
    change_letter,
    log_step,
    open_dead_letter,
    park,
)
from airflow_changefeed.sources.sqlite.feed.names import load_feed
from airflow_changefeed.sources.sqlite.feed.reader import check_beyond

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
            f"consumer {self._consumer!r} of feed {self._feed!r}: the work committed, rolled back or began a "
            "transaction, closed the connection, or swallowed an error that ended its transaction. Nothing "
            "was consumed. Leave begin, commit and rollback to the consumer (savepoints are allowed)",
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
