# SPDX-License-Identifier: Apache-2.0
"""The transaction of a consumer: its work and the events consumed with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_changefeed.consumers.events.event import FeedEvent
from airflow_changefeed.core.consumer import Attempt, Consumption, Parked
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ConsumerUseError, LeaseLostError

if TYPE_CHECKING:
    from airflow_changefeed.consumers.holding import Holding
    from airflow_changefeed.sources.base import FeedSource
    from airflow_changefeed.sources.base_consumers import ConsumerSession


class _RolledBackError(Exception):
    """Internal exception that ends a session's transaction."""


@dataclass
class _Mark:
    """
    What is consumed at commit: events of a shard up to a ULID, a parked event, or a dead letter.

    :param token: fencing token of the lease under which it was read; under a newer lease another consumer
        may have consumed it.
    """

    shard: Shard
    upto: Ulid
    token: int
    dead_letter: int | None = None
    parked: Parked | None = None


class Work:
    """
    A consumer's database session and its transaction.

    A transaction begins in the database when its connection is first used, or at commit; until then a
    consumer can still read events, even on a database with a single writer.
    """

    def __init__(self, source: FeedSource, holding: Holding) -> None:
        self._source = source
        self._holding = holding
        self._session: ConsumerSession | None = None
        self._block: AbstractContextManager[None] | None = None
        self._marks: list[_Mark] = []
        self.is_open = False

    @property
    def has_begun(self) -> bool:
        """Whether the transaction has begun in the database."""
        return self._block is not None

    @property
    def shards(self) -> set[Shard]:
        """The shards whose events the transaction consumes."""
        return {mark.shard for mark in self._marks}

    @property
    def session(self) -> ConsumerSession:
        """The session, opened on first use."""
        if self._session is None:
            wanted = self._holding.wanted
            self._session = self._source.open_session(wanted.consumer, wanted.feed)
        return self._session

    def begin(self) -> None:
        """Begin a transaction."""
        if self.is_open:
            raise ConsumerUseError("a transaction is already open; commit or roll it back first")
        self.is_open = True

    def connect(self) -> Any:
        """Return the connection, in the transaction."""
        self.need_open("the connection")
        if self._block is None:
            block = self.session.transaction()
            block.__enter__()
            self._block = block
        return self.session.connection

    def need_open(self, what: str) -> None:
        """Raise ConsumerUseError unless a transaction is open."""
        if not self.is_open:
            raise ConsumerUseError(f"{what} needs a transaction; call begin(), or use `with transaction()`")

    def mark(self, events: Sequence[FeedEvent], token: int) -> None:
        """Consume events of one shard, or a dead letter, with the transaction."""
        last = events[-1]
        before = self._marks[-1] if self._marks else None
        if last.dead_letter is not None:
            self._marks.append(_Mark(last.shard, last.id, token, dead_letter=last.dead_letter))
        elif before and (before.shard, before.token) == (last.shard, token) and before.dead_letter is None:
            before.upto = last.id
        else:
            self.mark_place(last.shard, last.id, token)

    def mark_place(self, shard: Shard, upto: Ulid, token: int, parked: Parked | None = None) -> None:
        """Move the cursor with the transaction, over events that are not delivered or one that is parked."""
        self._marks.append(_Mark(shard, upto, token, parked=parked))

    @property
    def is_held(self) -> bool:
        """Whether all marked events are still held under the lease they were read under."""
        return all(self._holding.has(mark.shard, mark.token) for mark in self._marks)

    def commit(self, attempt: Attempt | None = None) -> None:
        """Consume the marked events and commit."""
        rows: dict[Shard, CursorRow] = {}
        try:
            if self._marks:
                self.connect()
            for mark in self._marks:
                rows[mark.shard] = self.session.consume(self._step(mark, rows, attempt))
                attempt = None
        except BaseException as error:
            self.roll_back(error)
            raise
        block, self._block = self._block, None
        self._end()
        if block is not None:
            block.__exit__(None, None, None)
        for row in rows.values():
            self._holding.rows[row.shard] = row

    def _step(self, mark: _Mark, rows: dict[Shard, CursorRow], attempt: Attempt | None) -> Consumption:
        wanted = self._holding.wanted
        row = rows.get(mark.shard) or self._holding.rows.get(mark.shard)
        if row is None or row.fencing_token != mark.token:
            raise LeaseLostError(
                f"consumer {wanted.consumer!r} of feed {wanted.feed!r} lost shard {mark.shard}: it did not "
                "request the next event or consume within its emit timeout, and another consumer waited. "
                "Nothing was written. Call get() to continue with the shards it holds now, or raise "
                "emit_timeout",
                consumer=wanted.consumer,
                feed=wanted.feed,
                shard=mark.shard,
            )
        return Consumption(
            shard=mark.shard,
            upto=max(mark.upto, row.ulid),
            expected_version=row.resource_version,
            fencing_token=row.fencing_token,
            seconds=wanted.seconds,
            attempt=attempt,
            parked=mark.parked,
            dead_letter=mark.dead_letter,
        )

    def roll_back(self, error: BaseException | None = None) -> None:
        """
        Roll back.

        :param error: the cause; the session may raise a more precise error for it.
        """
        block, self._block = self._block, None
        self._end()
        if block is not None:
            why = error or _RolledBackError()
            try:
                block.__exit__(type(why), why, why.__traceback__)
            except _RolledBackError:
                return

    def _end(self) -> None:
        self._marks = []
        self.is_open = False

    def log(self, shard: Shard, attempt: Attempt, token: int) -> None:
        """Write a failed attempt to the log, outside any transaction."""
        step = Consumption(shard, attempt.last, 0, token, self._holding.wanted.seconds, attempt)
        self.session.log([step], holder=self._holding.holder)

    def close(self) -> None:
        """Close the session, which rolls back an open transaction."""
        self._end()
        session, self._session, self._block = self._session, None, None
        if session is not None:
            session.close()
