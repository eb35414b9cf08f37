# SPDX-License-Identifier: Apache-2.0
"""
The cursor rows of consumers, in SQL Server: compare-and-set under a lease.

The version of a row is Hasura's ``resource_version`` (ADR 0004).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from airflow_changefeed.core.codec import decode_text
from airflow_changefeed.core.consumer import OutputCheck
from airflow_changefeed.core.cursor import Began, CursorChange, CursorRow, check_consumer
from airflow_changefeed.core.feed import Shard, shard_text
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import (
    InvalidArgumentError,
    LeaseHeldError,
    LeaseLostError,
    StaleVersionError,
)
from airflow_changefeed.sources.base_consumers import CursorMove
from airflow_changefeed.sources.mssql.connection.errors import naming_errors
from airflow_changefeed.sources.mssql.connection.session import Record, Session
from airflow_changefeed.sources.mssql.feed.catalog import MssqlCalls, call_feed
from airflow_changefeed.sources.mssql.feed.feed import MssqlFeed
from airflow_changefeed.sources.mssql.names import without_zone
from airflow_changefeed.sources.shared import cursor_change, row_of_cursor


class MssqlCursors(MssqlCalls):
    """The part of the source that keeps cursors."""

    def cursors(self, feed: str, consumer: str | None = None) -> list[CursorRow]:
        (rows,) = self._ask(feed, "list_cursors", {"consumer": consumer})
        return [cursor_row(feed, row) for row in rows]

    def begin_consumer(
        self,
        consumer: str,
        feed: str,
        starts: Mapping[Shard, Ulid],
        *,
        by: str,
        why: str | None = None,
        began: Began = Began.IMPLIED,
    ) -> list[CursorRow]:
        check_consumer(consumer)
        with self._with_feed(feed, consumer=consumer) as (session, found):
            with session.transaction():
                for shard in in_order(starts):
                    value = {"shard_id": found.to_sql(shard), "after": starts[shard].bytes}
                    given = {"consumer": consumer, **value, "by": by, "why": why, "began": began.value}
                    call_feed(session, found, "begin_consumer", given)
            return _rows(session, found, consumer)

    @contextmanager
    def _telling_row(
        self, consumer: str, feed: str, is_it: Callable[[CursorRow], bool] | None = None
    ) -> Iterator[None]:
        """
        Add the conflicting row, read afterwards, to a refusal.

        :param is_it: finds it; None for the row of the error's shard.
        """
        try:
            yield
        except (StaleVersionError, LeaseLostError, LeaseHeldError) as error:
            shard = error.facts.get("shard")
            rows = self.cursors(feed, consumer)
            row = next((row for row in rows if (is_it(row) if is_it else row.shard == shard)), None)
            if row is None:
                raise
            present = {"present_version": row.resource_version, "holder": row.lease_holder}
            facts = {**error.facts, "row": row, **present, "expires": row.lease_expires}
            raise type(error)(error.message, **facts) from error

    def move_cursors(
        self, consumer: str, feed: str, moves: Sequence[CursorMove], *, by: str, why: str | None = None
    ) -> list[CursorRow]:
        by_shard = {move.shard: move for move in moves}
        if len(by_shard) < len(moves):
            raise InvalidArgumentError(
                f"consumer {consumer!r}, feed {feed!r}: two moves for one shard; pass one move for each shard"
            )
        with (
            self._telling_row(consumer, feed),
            self._with_feed(feed, consumer=consumer) as (session, found),
        ):
            with session.transaction():
                for shard in in_order(by_shard):
                    move = by_shard[shard]
                    value = _move(found, move) | {"by": by, "why": why}
                    asked = {"expected_version": move.expected_version, "fencing_token": move.fencing_token}
                    with naming_errors(feed=feed, consumer=consumer, shard=shard, **asked):
                        call_feed(session, found, "move_cursor", {"consumer": consumer, **value})
            return _rows(session, found, consumer)

    def history(
        self, feed: str, consumer: str, *, shard: Shard | None = None, limit: int = 100
    ) -> list[CursorChange]:
        if limit < 1:
            raise InvalidArgumentError(f"limit must be 1 or more, not {limit}")

        def arguments(found: MssqlFeed) -> Record:
            of = None if shard is None else shard_text(found.to_sql(shard))
            return {"consumer": consumer, "shard": of, "limit": limit}

        (rows,) = self._ask(feed, "list_cursor_history", arguments, consumer=consumer)
        return [cursor_change(feed, row) for row in rows]

    def drop_consumer(self, consumer: str, feed: str, *, resource_version: int | None = None) -> None:
        arguments = {"consumer": consumer, "resource_version": resource_version}
        self._change(feed, "drop_consumer", arguments, consumer=consumer)

    def record_check(self, check: OutputCheck) -> None:
        value = {
            "consumer": check.consumer,
            "path": check.path,
            "checked_at": without_zone(check.checked_at),
            "by": check.checked_by,
            "missing": check.missing,
            "first_missing": None if check.first is None else without_zone(check.first),
        }
        # Recorded again, it is the same.
        self._ask(check.feed, "record_check", value, consumer=check.consumer)


def in_order(shards: Sequence[Shard] | Mapping[Shard, Any]) -> list[Shard]:
    """Return shards in one order for all callers, to avoid deadlocks."""
    return sorted(shards, key=shard_text)


def _move(feed: MssqlFeed, move: CursorMove) -> dict[str, Any]:
    """Return the arguments of ``move_cursor`` but for consumer and mover."""
    frontier = move.frontier
    furthest = frontier.ahead[-1].upto if frontier.ahead else frontier.upto
    return {
        "shard_id": feed.to_sql(move.shard),
        "start_ulid": frontier.start.bytes,
        "ulid": frontier.upto.bytes,
        "ahead": _as_text(frontier.ahead),
        "before": _as_text(frontier.before),
        "furthest": max(furthest, move.ack or Ulid.MIN).bytes,
        "ack": None if move.ack is None else move.ack.bytes,
        "expected_version": move.expected_version,
        "fencing_token": move.fencing_token,
        "is_rewind": move.is_rewind or None,
        "began": None if move.began is None else move.began.value,
    }


def _as_text(ranges: Sequence[UlidRange]) -> str:
    """Return ranges as the database holds them: JSON, with the digits of their bytes, which a purge reads."""
    return json.dumps([{"after": one.after.bytes.hex(), "upto": one.upto.bytes.hex()} for one in ranges])


def _as_ranges(text: str) -> tuple[UlidRange, ...]:
    pairs = decode_text(tuple[dict[str, str], ...], text, named="ranges of a frontier")
    return tuple(
        UlidRange(*(Ulid.of_bytes(bytes.fromhex(pair[end])) for end in ("after", "upto"))) for pair in pairs
    )


def _rows(session: Session, feed: MssqlFeed, consumer: str) -> list[CursorRow]:
    (rows,) = call_feed(session, feed, "list_cursors", {"consumer": consumer})
    return [cursor_row(feed.name, row) for row in rows]


def cursor_row(feed: str, row: Mapping[str, Any]) -> CursorRow:
    """Return a cursor row from a procedure's row."""
    return row_of_cursor(feed, row, _as_ranges)
