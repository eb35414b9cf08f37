# SPDX-License-Identifier: Apache-2.0
"""Dead letters and the invocation log, in SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from datetime import datetime

from airflow_changefeed.core.consumer import Consumption, DeadLetter, DeadLetterState, Invocation, Parked
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import DeadLetterError
from airflow_changefeed.sources.base_versions import stale
from airflow_changefeed.sources.rows import ATTEMPT, as_row, dead_letter, invocation
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase
from airflow_changefeed.sources.sqlite.consumers.cursor_rows import CURSORS, key_of
from airflow_changefeed.sources.sqlite.feed.names import load_feed
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
