# SPDX-License-Identifier: Apache-2.0
"""A consumer of events with a feed and a table for its work: what the tests of consumers begin with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_changefeed.core.consumer import Attempt, ConsumerSpec, Consumption
from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.feed import Event, Shard
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import ChangefeedError
from airflow_changefeed.sources.base_consumers import ConsumerSession, Grant
from tests.integration.contract.bench import Bench
from tests.integration.contract.engines import Table

ME, FIRST, SECOND = "me", "host:1:first", "host:2:second"
#: Where the work of tests goes; a key is what was done.
WORK = Table(name="shop.done", keys=(("id", "integer"),), columns=(("note", "text"),))
DO = 'insert into "shop.done" (id, note) values (?, ?)'


@dataclass
class Stand:
    """
    A feed, and a consumer of its events.

    :param events: of each shard.
    """

    bench: Bench
    events: dict[Shard, list[Event]]

    @property
    def source(self) -> Any:
        """The source of the feed."""
        return self.bench.source

    @property
    def feed(self) -> str:
        """The feed's name."""
        return self.bench.feed

    @property
    def spec(self) -> ConsumerSpec:
        """The consumer's settings."""
        return ConsumerSpec(ME, self.feed)

    def ulid(self, number: int, shard: Shard = 0) -> Ulid:
        """Return the ULID of an event, from 0."""
        return self.events[shard][number].ulid

    def row(self, shard: Shard = 0) -> CursorRow:
        """Return the present cursor row."""
        return {row.shard: row for row in self.source.cursors(self.feed, ME)}[shard]

    def request(
        self, holder: str = FIRST, *shards: Shard, seconds: float = 60, at_most: int | None = None
    ) -> Grant:
        """Ask for leases; of both shards, if none are named."""
        found: Grant = self.source.acquire_leases(
            ME, self.feed, shards or (0, 1), holder=holder, seconds=seconds, at_most=at_most
        )
        return found

    def step(self, row: CursorRow, number: int, **more: Any) -> Consumption:
        """Return the step to an event, under the lease that a row shows."""
        upto = self.ulid(number, row.shard)
        return Consumption(row.shard, upto, row.resource_version, row.fencing_token, 60, **more)

    def attempt(self, number: int, shard: Shard = 0, **more: Any) -> Attempt:
        """Return an attempt at one event."""
        ulid = self.ulid(number, shard)
        return Attempt(ulid, ulid, 1, 1, self.source.now(), **more)

    @contextmanager
    def session(self) -> Iterator[ConsumerSession]:
        """Open a session of the consumer's."""
        with closing(self.source.open_session(ME, self.feed)) as session:
            yield session

    def take(self, session: ConsumerSession, step: Consumption) -> CursorRow:
        """Take a step that has no work."""
        with session.transaction():
            return session.consume(step)

    def do(self, session: ConsumerSession, key: int, note: str = "") -> None:
        """Do some work in the session's transaction."""
        self.bench.engine.run(session.connection, DO, key, note)

    def done(self) -> set[int]:
        """Return what work was done."""
        return {key for (key,) in self.bench.engine.keys(WORK)}


def set_up_stand(bench: Bench) -> Stand:
    """Write three events into each of two shards, and make a consumer at the beginning of both."""
    for shard in (0, 1):
        bench.write(3, shard=shard)
    stand = Stand(bench, {shard: bench.events(shard) for shard in (0, 1)})
    stand.source.create_consumer(stand.spec, begin=Ulid.MIN, starts={0: Ulid.MIN, 1: Ulid.MIN}, by="test")
    bench.engine.create_table(WORK)
    return stand


@contextmanager
def refused(
    session: ConsumerSession, error: type[ChangefeedError] | type[ZeroDivisionError], match: str | None = None
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Run the block as a transaction that ends with an error."""
    with pytest.raises(error, match=match) as caught, session.transaction():
        yield caught


def expire(stand: Stand, shard: Shard = 0) -> None:
    """Wait for the database's clock to pass a lease's end."""
    deadline = time.monotonic() + 30
    expires = stand.row(shard).lease_expires
    while expires is not None and stand.source.now() <= expires:
        assert time.monotonic() < deadline, "the database's clock stands still"
