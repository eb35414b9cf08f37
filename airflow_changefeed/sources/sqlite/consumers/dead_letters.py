# SPDX-License-Identifier: Apache-2.0
"""Dead letters and the invocation log, in SQLite."""

from __future__ import annotations

import sqlite3
from datetime import datetime

from airflow_changefeed.core.consumer import (
    MAX_BY,
    MAX_REASON,
    Attempt,
    DeadLetter,
    DeadLetterState,
    Invocation,
    Parked,
)
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.times import to_milliseconds
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import DeadLetterError, storable
from airflow_changefeed.sources.base_versions import check_version
from airflow_changefeed.sources.rows import dead_letter, invocation
from airflow_changefeed.sources.sqlite.connection import SqliteDatabase, records
from airflow_changefeed.sources.sqlite.feed.names import load_feed


class SqliteDeadLetters:
    """The part of the source that keeps dead letters and the invocation log."""

    database: SqliteDatabase

    def dead_letters(
        self, feed: str | None = None, consumer: str | None = None, *, is_open: bool = True
    ) -> list[DeadLetter]:
        with self.database.connect() as connection:
            if feed is not None:
                load_feed(connection, feed)
            rows = records(
                connection,
                'select * from "changefeed.dead_letter" where (?1 is null or feed = ?1) '
                "and (?2 is null or consumer = ?2) and (?3 = 0 or state in ('parked', 'retry')) "
                "order by number",
                (feed, consumer, int(is_open)),
            )
            return [dead_letter(row) for row in rows]

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
            check_version(
                f"dead letter {number} of consumer {letter.consumer!r}, feed {letter.feed!r}",
                resource_version,
                letter.resource_version,
                f"{letter.state.value}, attempts: {letter.attempts}",
            )
            if state.is_open:
                connection.execute(
                    'update "changefeed.dead_letter" set state = ?, resource_version = resource_version + 1 '
                    "where number = ?",
                    (state.value, number),
                )
            else:
                resolve(connection, letter, state, self.database.now_ms(), by=by, note=note)
            return _load(connection, number)

    def park_again(self, number: int, parked: Parked) -> DeadLetter:
        with self.database.connect() as connection, self.database.write(connection):
            open_dead_letter(connection, number)
            # The log from which they are counted may have been purged meanwhile.
            connection.execute(
                "update \"changefeed.dead_letter\" set state = 'parked', attempts = max(?, attempts + 1), "
                "reason = ?, resource_version = resource_version + 1 where number = ?",
                (parked.attempts, storable(parked.reason, MAX_REASON), number),
            )
            return _load(connection, number)

    def invocations(
        self, feed: str, consumer: str, *, shard: Shard | None = None, limit: int = 100
    ) -> list[Invocation]:
        with self.database.connect() as connection:
            load_feed(connection, feed)
            rows = records(
                connection,
                'select * from "changefeed.invocation" where feed = ?1 and consumer = ?2 '
                "and (?3 is null or shard = ?3) order by number desc limit ?4",
                (feed, consumer, None if shard is None else shard_text(shard), limit),
            )
            return [invocation(feed, row) for row in rows]

    def purge_invocations(self, feed: str, consumer: str, *, before: datetime) -> int:
        with self.database.connect() as connection, self.database.write(connection):
            load_feed(connection, feed)
            return connection.execute(
                'delete from "changefeed.invocation" where feed = ? and consumer = ? and ended_at_ms < ?',
                (feed, consumer, to_milliseconds(before)),
            ).rowcount


def park(
    connection: sqlite3.Connection, key: tuple[str, str, Shard], parked: Parked, now_ms: int, *, by: str
) -> None:
    """
    Make an event a dead letter; one that was resolved, and comes again after a cursor was set back, is open
    again.

    :param place: consumer, feed and shard.
    """
    consumer, feed, shard = key
    connection.execute(
        'insert into "changefeed.dead_letter" '
        "(consumer, feed, shard, ulid, state, attempts, reason, parked_at_ms, parked_by) "
        "values (?, ?, ?, ?, 'parked', ?, ?, ?, ?) on conflict (feed, consumer, shard, ulid) do update set "
        "state = 'parked', attempts = excluded.attempts, reason = excluded.reason, "
        "parked_at_ms = excluded.parked_at_ms, parked_by = excluded.parked_by, resolved_at_ms = null, "
        "resolved_by = null, note = null, resource_version = resource_version + 1",
        (
            consumer,
            feed,
            shard_text(shard),
            parked.ulid.bytes,
            parked.attempts,
            storable(parked.reason, MAX_REASON),
            now_ms,
            by,
        ),
    )


def resolve(
    connection: sqlite3.Connection,
    letter: DeadLetter,
    state: DeadLetterState,
    now_ms: int,
    *,
    by: str,
    note: str | None = None,
) -> None:
    """Close a dead letter, and let its consumer's ack go on to the next open one or the cursor."""
    connection.execute(
        'update "changefeed.dead_letter" set state = ?, resolved_at_ms = ?, resolved_by = ?, note = ?, '
        "resource_version = resource_version + 1 where number = ?",
        (state.value, now_ms, storable(by, MAX_BY), note and storable(note, MAX_REASON), letter.number),
    )
    where = "feed = ? and consumer = ? and shard = ?"
    key = (letter.feed, letter.consumer, shard_text(letter.shard))
    row = connection.execute(f'select ulid from "changefeed.consumer" where {where}', key).fetchone()
    if row is not None:
        ack = ack_of(connection, (letter.consumer, letter.feed, letter.shard), Ulid.of_bytes(row[0]))
        connection.execute(
            f'update "changefeed.consumer" set ack = max(ack, ?) where {where}', (ack.bytes, *key)
        )


def open_dead_letter(connection: sqlite3.Connection, number: int) -> DeadLetter:
    """
    Return an open dead letter.

    :raises DeadLetterError: it does not exist, or was resolved.
    """
    letter = _load(connection, number)
    if not letter.state.is_open:
        raise DeadLetterError(
            f"dead letter {number} was already resolved as {letter.state.value} by "
            f"{letter.resolved_by!r}; nothing was changed",
            number=number,
            dead_letter=letter,
        )
    return letter


def ack_of(connection: sqlite3.Connection, key: tuple[str, str, Shard], cursor: Ulid) -> Ulid:
    """Return the ack of a consumer: below its first open dead letter, or its cursor."""
    consumer, feed, shard = key
    (first,) = connection.execute(
        'select min(ulid) from "changefeed.dead_letter" where feed = ? and consumer = ? and shard = ? '
        "and state in ('parked', 'retry')",
        (feed, consumer, shard_text(shard)),
    ).fetchone()
    return cursor if first is None else min(cursor, Ulid.of_bytes(first).previous())


def log_attempt(
    connection: sqlite3.Connection,
    key: tuple[str, str, Shard],
    attempt: Attempt,
    ended_ms: int,
    *,
    holder: str,
    token: int,
) -> None:
    """Write an attempt into the log."""
    consumer, feed, shard = key
    connection.execute(
        'insert into "changefeed.invocation" (consumer, feed, shard, first_ulid, last_ulid, events, attempt, '
        "started_at_ms, ended_at_ms, outcome, error, holder, fencing_token) "
        "values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            consumer,
            feed,
            shard_text(shard),
            attempt.first.bytes,
            attempt.last.bytes,
            attempt.events,
            attempt.number,
            to_milliseconds(attempt.started_at),
            ended_ms,
            attempt.outcome.value,
            attempt.error and storable(attempt.error, MAX_REASON),
            storable(holder, MAX_BY),
            token,
        ),
    )


def _load(connection: sqlite3.Connection, number: int) -> DeadLetter:
    rows = records(connection, 'select * from "changefeed.dead_letter" where number = ?', (number,))
    if not rows:
        raise DeadLetterError(
            f"dead letter {number} not found; list them: {shell('dead-letters list')}",
            number=number,
        )
    return dead_letter(rows[0])
