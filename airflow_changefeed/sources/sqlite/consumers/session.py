# SPDX-License-Identifier: Apache-2.0
"""The step of a consumer on SQLite: its work and its cursor in one transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from airflow_changefeed.core.consumer import Consumption, DeadLetterState
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import shard_text
from airflow_changefeed.core.ulid import UlidRange
from airflow_changefeed.exceptions import (
    ConsumerUseError,
    LeaseLostError,
    ShardNotFoundError,
    WorkTransactionError,
)
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.consumers.cursor_rows import check_version, cursor_rows
from airflow_changefeed.sources.sqlite.consumers.dead_letters import (
    ack_of,
    log_attempt,
    open_dead_letter,
    park,
    resolve,
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
        connection, key = self.connection, (self._consumer, self._feed, step.shard)
        tables = load_feed(connection, self._feed)
        row = self._fenced(connection, step)
        now_ms = self._database.now_ms()
        holder = str(row.lease_holder)
        upto = max(step.upto, row.ulid)
        check_beyond(connection, tables, step.shard, upto)
        if step.parked is not None:
            park(connection, key, step.parked, now_ms, by=holder)
        if step.dead_letter is not None:
            resolve(
                connection,
                open_dead_letter(connection, step.dead_letter),
                DeadLetterState.DONE,
                now_ms,
                by=holder,
            )
        if step.attempt is not None:
            log_attempt(connection, key, step.attempt, now_ms, holder=holder, token=step.fencing_token)
        ack = max(row.ack, ack_of(connection, key, upto))
        connection.execute(
            'update "changefeed.consumer" set ulid = ?, ack = ?, resource_version = resource_version + 1, '
            "moved_at_ms = ?, moved_by = ?, lease_expires_ms = ? "
            "where feed = ? and consumer = ? and shard = ?",
            (
                row.frontier.complete(UlidRange(row.ulid, upto)).upto.bytes,
                ack.bytes,
                now_ms,
                holder,
                now_ms + int(step.seconds * 1000),
                self._feed,
                self._consumer,
                shard_text(step.shard),
            ),
        )
        return self._row(connection, step)

    def _row(self, connection: sqlite3.Connection, step: Consumption) -> CursorRow:
        for row in cursor_rows(connection, self._feed, self._consumer, step.shard):
            return row
        raise ShardNotFoundError(
            f"consumer {self._consumer!r} has no cursor for shard {shard_text(step.shard)} of feed "
            f"{self._feed!r}; the consumer was dropped, or never acquired the shard",
            consumer=self._consumer,
            feed=self._feed,
            shard=step.shard,
        )

    def _fenced(self, connection: sqlite3.Connection, step: Consumption) -> CursorRow:
        """Return the row if it is the caller's to move: the newest grant, and as it was last seen."""
        row = self._row(connection, step)
        # The lease first: its loser may retry, whatever the new holder has moved meanwhile.
        if row.fencing_token != step.fencing_token or row.lease_holder is None:
            raise LeaseLostError(
                f"lease {step.fencing_token} on consumer {self._consumer!r}, feed {self._feed!r}, shard "
                f"{shard_text(step.shard)} is lost (newest lease {row.fencing_token}, held by "
                f"{row.lease_holder!r}): nothing was written; register again",
                row=row,
                fencing_token=step.fencing_token,
            )
        check_version(row, step.expected_version)
        return row

    def log(self, steps: Sequence[Consumption], *, holder: str) -> None:
        with self._database.connect() as connection, self._database.write(connection):
            load_feed(connection, self._feed)
            now_ms = self._database.now_ms()
            is_there = connection.execute(
                'select 1 from "changefeed.consumer_settings" where feed = ? and consumer = ?',
                (self._feed, self._consumer),
            ).fetchone()
            for step in steps if is_there else []:
                if step.attempt is not None:
                    key = (self._consumer, self._feed, step.shard)
                    log_attempt(
                        connection, key, step.attempt, now_ms, holder=holder, token=step.fencing_token
                    )

    def close(self) -> None:
        stack, self._stack, self._open = self._stack, ExitStack(), None
        stack.close()
