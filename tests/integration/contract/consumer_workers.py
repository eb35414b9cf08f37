# SPDX-License-Identifier: Apache-2.0
"""
The consumers of a fail-over race: processes of which each is killed, cut off or put to sleep at any moment.

As in ``workers.py``: :func:`main` reads its job, says that it is ready, and waits for a byte. Each further
byte puts it to sleep beyond its lease, with an event that it has got; the input's end ends it.
"""

from __future__ import annotations

import os
import pickle
import select
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from airflow_changefeed.consumers.consumer import Consumer
from airflow_changefeed.exceptions import LeaseHeldError, TransientError
from airflow_changefeed.sources import open_source
from airflow_changefeed.sources.base import FeedSource
from tests.integration.contract.mssql_changer import in_parts
from tests.integration.contract.workers import receive, rest, step

NAME = "workers"
HANDLED = "shop.handled"
_INSERT = f'insert into "{HANDLED}" (ulid, shard, token, holder) values (?, ?, ?, ?)'
#: Seconds that a piece of work takes at least, so that a fault finds some of it undone.
WORK = 0.01


@dataclass(frozen=True)
class ConsumerJob:
    """
    What a process does.

    :param description: of the source, over the line that can be cut where there is one.
    :param lease: seconds.
    :param sleeps_inside: whether it sleeps in its transaction, where that stops nobody else.
    """

    number: int
    description: dict[str, Any]
    feed: str
    lease: float
    sleeps_inside: bool


class Orders:
    """What the race has told this process since it last looked."""

    def __init__(self) -> None:
        self.is_over = False
        self._sleeps = 0

    def look(self, seconds: float = 0.0) -> None:
        """Read what there is, waiting at most so long for it."""
        while not self.is_over and select.select([0], [], [], seconds)[0]:
            found = os.read(0, 64)
            self._sleeps += len(found)
            self.is_over = not found
            seconds = 0.0

    def take_sleep(self) -> bool:
        """Say whether to sleep now; once for each order."""
        self.look()
        self._sleeps, was = max(0, self._sleeps - 1), self._sleeps
        return bool(was)


def consume(job: ConsumerJob, source: FeedSource, orders: Orders) -> None:
    """Handle events until the end, whatever happens to the leases."""
    consumer = Consumer(
        source, NAME, job.feed, emit_timeout=job.lease, poll_interval=0.1, register_timeout=0.5
    )
    while not orders.is_over:
        try:
            consumer.register()
            _consume_registered(job, consumer, orders)
        except LeaseHeldError:
            orders.look()
        except TransientError:
            # Lost to another, or cut off: from where the database says that the consumer stands.
            orders.look(0.05)
        finally:
            with suppress(TransientError):
                consumer.leave()


def _consume_registered(job: ConsumerJob, consumer: Consumer, orders: Orders) -> None:
    is_mssql = job.description["type"] == "mssql"
    while not orders.is_over:
        event = consumer.poll(0.2)
        orders.look()
        if event is None:
            continue
        is_tired = orders.take_sleep()
        token = consumer.token(event.shard)
        if is_tired and not job.sleeps_inside:
            rest(job.lease * 2.5)
        with consumer.transaction() as connection:
            cursor = connection.cursor()
            values = (str(event.id), int(str(event.shard)), token, consumer.holder)
            cursor.execute(in_parts(_INSERT) if is_mssql else _INSERT, values)
            cursor.close()
            if is_tired and job.sleeps_inside:
                rest(job.lease * 2.5)
            consumer.next()
        rest(WORK)


def main() -> None:
    """Do the job that stands on the input."""
    job: ConsumerJob = pickle.loads(receive(int.from_bytes(receive(8), "big")))  # noqa: S301 - of the race
    with closing(open_source(job.description)) as source:
        step()
        receive(1)
        consume(job, source, Orders())
