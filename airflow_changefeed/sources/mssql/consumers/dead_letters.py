# SPDX-License-Identifier: Apache-2.0
"""Dead letters and the invocation log, in SQL Server."""

from __future__ import annotations

from datetime import datetime
from itertools import chain

from airflow_changefeed.core.consumer import (
    Attempt,
    DeadLetter,
    DeadLetterState,
    Invocation,
    Parked,
)
from airflow_changefeed.core.fault import shell
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.exceptions import DeadLetterError
from airflow_changefeed.sources.mssql.connection.session import Record
from airflow_changefeed.sources.mssql.feed.calls import MssqlCalls, call_feed, call_for_all
from airflow_changefeed.sources.mssql.feed.catalog import load_feed
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.names import without_zone
from airflow_changefeed.sources.rows import dead_letter, invocation


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
