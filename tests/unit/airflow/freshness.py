# SPDX-License-Identifier: Apache-2.0
"""Feeds whose consumers are late or not, for tests of freshness."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.consumer import ConsumerSpec
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.cursors import cursors
from airflow_changefeed.doctor.airflow import DagState
from airflow_changefeed.doctor.freshness import ConsumerFreshness, Freshness, check_freshness
from airflow_changefeed.exceptions import (
    AirflowUnavailableError,
)
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.identity import name_database
from tests.unit.export.consumers import Variables

FEED, OTHER, EXPORT = "shop.Order", "shop.Parcel", "warehouse"
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
RUN = "hourly/scheduled__1/export/1"


class Shop:
    """Two feeds in a file, by hours that have just passed."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.variables = Variables()
        self.known: dict[str, DagState] = {}
        self.is_airflow_away = False
        self.source = SqliteFeedSource(self.path, lock_timeout=0.2)
        self.hour = datetime.now(timezone.utc).replace(minute=0, second=0, microsecond=0) - HOUR
        for feed in (FEED, OTHER):
            self.sql(f'create table "{feed}" (id integer primary key)')
            self.source.set_up_feed(feed)
        name_database(self.path)

    def sql(self, statement: str) -> None:
        """Do what a writer or a person does to the file."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            connection.execute(statement)

    def write(self, number: int, ago: timedelta, feed: str = FEED, *, drain: bool = True) -> None:
        """Write an event of some time ago."""
        hint = int((self.source.now() - ago).timestamp() * 1000)
        self.sql(f'insert into "{feed}" values ({number})')
        self.sql(f'insert into "changefeed.outbox:{feed}" (time_hint, id) values ({hint}, {number})')
        if drain:
            self.source.drain(feed)

    def export(self, first: int, last: int, feed: str = FEED, *, by: str = RUN) -> None:
        """Complete the hours from ``first`` to ``last``, counted back from the last whole one, 0."""
        if not self.source.shards(feed):
            self.write(100, 12 * HOUR, feed)
        begin, end = self.hour - first * HOUR, self.hour - (last - 1) * HOUR
        window = UlidRange(Ulid.floor(begin).previous(), Ulid.floor(end).previous())
        self.source.seal(feed, end)
        self.source.begin_consumer(EXPORT, feed, {0: window.after}, by=by)
        cursors.advance(self.source, self.variables, EXPORT, feed, {0: [window]}, by=by)

    def age_cursors(self, by: timedelta) -> None:
        """Let all cursors have moved some time earlier."""
        self.sql(f'update "changefeed.consumer" set moved_at_ms = moved_at_ms - {by // MINUTE * 60_000}')

    def consumer(self, name: str = "billing", **settings: Any) -> None:
        """Create a consumer of all events."""
        create_consumer(self.source, ConsumerSpec(name, FEED, **settings), "earliest", by="a person")

    def check(self, max_age: timedelta = 2 * HOUR, **options: Any) -> Freshness:
        """Compute the freshness with the DAGs that are known here."""
        return check_freshness(self.source, None, self.find_dag, max_age, **options)

    def find_dag(self, dag_id: str) -> DagState:
        """Return what is known here of a DAG."""
        if self.is_airflow_away:
            raise AirflowUnavailableError.of(
                "could not read the state of the DAG: no such table", "Migrate it"
            )
        return self.known.get(dag_id, DagState(dag_id))

    def only(self, max_age: timedelta = 2 * HOUR, **options: Any) -> ConsumerFreshness:
        """Return the freshness of the only consumer."""
        (found,) = self.check(max_age, **options).consumers
        return found

    def codes(self, max_age: timedelta = 2 * HOUR) -> list[str]:
        """Return why the only consumer is late."""
        return [fault.kind.code for fault in self.only(max_age).reasons]


def late(shop: Shop) -> Shop:
    """Let an export have stopped four hours ago."""
    shop.export(9, 4)
    shop.age_cursors(4 * HOUR)
    return shop


def stuck(shop: Shop) -> None:
    """Let a process hold the lease, and do nothing."""
    late(shop)
    shop.source.acquire_leases(EXPORT, FEED, [0], holder="pod-7", seconds=7200, all_or_none=True)
