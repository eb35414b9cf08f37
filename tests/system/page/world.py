# SPDX-License-Identifier: Apache-2.0
"""An Airflow with three users, a DAG that exports flights, many feeds, and a database that is gone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import httpx

from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.export.planner import ExportRequest, make_plan
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.system.airflow_api import AirflowApi
from tests.system.airflow_home import AirflowHome
from tests.system.page.shop import make_shop
from tests.unit.airflow.commands import connection_json
from tests.unit.export.flights import FEED, START, Flights, hours

CONSUMER, DAG_ID = "warehouse", "flights_hourly"
ARCHIVE, ON_DEMAND = "archive", "flights_on_demand"
#: By name; the password is the name. ann may do all, ben edit Variables, vera only look.
USERS = {"ann": "admin", "ben": "op", "vera": "viewer"}
SHARDS = (0, 1, 2)
MANY = 30
#: Hours of the exports that are there; between them is what a test backfills, or triggers.
DONE, ARCHIVED = ((0, 10), (12, 30)), ((0, 2), (3, 30))
HOURS = 40
DAG_FILE = """
from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import ChangefeedToParquetOperator, window_params

with DAG(
    "{dag_id}",
    schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
    start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
    end_date=datetime(2013, 1, 3, tzinfo=timezone.utc),
    catchup=False,
):
    ChangefeedToParquetOperator(
        task_id="export",
        feed="{feed}",
        path="{path}",
        consumer="{consumer}",
        changefeed_conn_id="flights",
        conn_id="spark_default",
        unit=timedelta(hours=1),
        local_below=1_000_000,
    )

with DAG("{on_demand}", schedule=None, params=window_params()):
    ChangefeedToParquetOperator(
        task_id="export",
        feed="{feed}",
        path="{path}-archive",
        consumer="{archive}",
        changefeed_conn_id="flights",
        conn_id="spark_default",
        local_below=1_000_000,
    )
"""


class UserApi(AirflowApi):
    """Airflow's API as its first user, who has a password."""

    def login(self) -> None:
        """Fetch a token."""
        self.use(self.token("ann"))

    def use(self, token: str) -> None:
        """Send a token from now on."""
        self._client.headers["Authorization"] = f"Bearer {token}"

    def token(self, user: str) -> str:
        """Log a user in."""
        answer = httpx.post(
            f"{self.url}/auth/token", json={"username": user, "password": user}, timeout=30, trust_env=False
        )
        answer.raise_for_status()
        return str(answer.json()["access_token"])


@dataclass
class World:
    """
    All of it below one folder.

    :param folder: short, so that the database's socket fits into it.
    :param others: connections that no DAG names, with sources of feeds that ``CONSUMER`` has begun.
    """

    folder: Path
    others: Mapping[str, FeedSource] = field(default_factory=dict)
    flights: Flights = field(init=False)
    store: ExportStore = field(init=False)
    home: AirflowHome = field(init=False)

    def __post_init__(self) -> None:
        self.flights = Flights.create(self.folder / "flights.db")
        self.store = ExportStore(str(self.folder / "export"), FEED)
        self._fill()
        self._many()
        make_shop(self.folder / "shop.db")
        self._write_dag()
        passwords = self.folder / "passwords.json"
        passwords.write_text(json.dumps({name: name for name in USERS}))
        self.home = AirflowHome(
            self.folder / "airflow",
            dags=self.folder / "dags",
            connections={
                "flights": {"conn_type": "sqlite", "host": str(self.flights.path)},
                "many": {"conn_type": "sqlite", "host": str(self.folder / "many.db")},
                "gone": {"conn_type": "sqlite", "host": str(self.folder / "gone.db")},
                "shop": {"conn_type": "sqlite", "host": str(self.folder / "shop.db")},
                "spark_default": {"conn_type": "spark", "host": "local[1]"},
                **{
                    conn_id: json.loads(connection_json(source.describe()))
                    for conn_id, source in self.others.items()
                },
            },
            env={
                "AIRFLOW__CHANGEFEED__PAGE_CONNECTIONS": ", ".join(("gone", "many", "shop", *self.others)),
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(
                    f"{name}:{role}" for name, role in USERS.items()
                ),
                "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            },
        )
        self.home.api = UserApi(self.home.url)

    @property
    def source(self) -> SqliteFeedSource:
        """The feed of the flights."""
        return SqliteFeedSource(str(self.flights.path), lock_timeout=20.0)

    @property
    def shop(self) -> SqliteFeedSource:
        """The capture of the shop."""
        return SqliteFeedSource(str(self.folder / "shop.db"), lock_timeout=20.0)

    def alter_shop(self, change: str) -> None:
        """Change the shop's captured table, as its owner would."""
        with closing(sqlite3.connect(self.folder / "shop.db", isolation_level=None)) as connection:
            connection.execute(f'alter table "shop.Order" {change}')

    def _fill(self) -> None:
        """Write flights, with hours that none leave in, and export most of the hours."""
        for shard in SHARDS:
            for hour in range(HOURS):
                if hour % 24 not in (2, 3, 4):
                    self.flights.add(3 + (hour * 7 + shard) % 11, hour, shard)
        archive = ExportStore(f"{self.store.path}-archive", FEED)
        self._export(self.store, CONSUMER, DONE, by="flights_hourly/first week")
        self._export(archive, ARCHIVE, ARCHIVED, by="flights_on_demand/first week")

    def _export(
        self, store: ExportStore, consumer: str, hours_done: Sequence[tuple[int, int]], *, by: str
    ) -> None:
        """Export hours, each from the first (inclusive) to the last (exclusive), and move the cursors."""
        source = self.source
        done = [UlidRange(*_ends(first, last)) for first, last in hours_done]
        for first, last in hours_done:
            request = ExportRequest(FEED, store.path, consumer, "tests/run", hours(first, last))
            plan = make_plan(source, store, request)
            self.flights.run(store, plan)
        from airflow_changefeed.cursors.cursors import advance

        advance(source, _Nowhere(), consumer, FEED, dict.fromkeys(SHARDS, done), by=by)

    def _many(self) -> None:
        """Make feeds enough for two pages, one of them with shards enough for three."""
        path = self.folder / "many.db"
        with closing(sqlite3.connect(path)) as connection:
            for number in range(MANY):
                connection.execute(f'create table "shop.Orders{number:02}" (id integer primary key)')
        source = SqliteFeedSource(str(path))
        for number in range(MANY):
            source.set_up_feed(f"shop.Orders{number:02}")
        with closing(sqlite3.connect(path)) as connection:
            for shard in range(60):
                connection.execute('insert into "shop.Orders00" values (?)', (shard,))
                connection.execute(
                    'insert into "changefeed.outbox:shop.Orders00" (shard_id, id) values (?, ?)',
                    (shard, shard),
                )
            connection.commit()

    def _write_dag(self) -> None:
        dags = self.folder / "dags"
        dags.mkdir()
        names = {"dag_id": DAG_ID, "consumer": CONSUMER, "on_demand": ON_DEMAND, "archive": ARCHIVE}
        text = DAG_FILE.format(feed=FEED, path=self.store.path, **names)
        (dags / "flights.py").write_text(text)


class _Nowhere:
    """Airflow's Variables before there is an Airflow: the first to read publishes them."""

    def get(self, key: str) -> str | None:
        """Return nothing."""
        return None

    def set(self, key: str, value: str) -> None:
        """Forget it."""

    def delete(self, key: str) -> None:
        """There is none."""


def _ends(first: int, last: int) -> tuple[Ulid, Ulid]:
    return (
        Ulid.floor(START + first * timedelta(hours=1)).previous(),
        Ulid.floor(START + last * timedelta(hours=1)).previous(),
    )
