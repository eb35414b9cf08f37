# SPDX-License-Identifier: Apache-2.0
"""An Airflow with three users, a DAG that exports flights, many feeds, and a database that is gone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import httpx

from airflow_changefeed.consumers.begin import create_consumer
from airflow_changefeed.consumers.handlers.attempt import Backoff
from airflow_changefeed.consumers.handlers.run import run_consumer
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, OnPoison
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.exceptions import CaptureGapError
from airflow_changefeed.export.planner import ExportRequest, make_plan
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.system.airflow_api import AirflowApi
from tests.system.airflow_home import AirflowHome
from tests.unit.airflow.commands import connection_json
from tests.unit.export.flights import FEED, START, Flights, hours

CONSUMER, DAG_ID = "warehouse", "flights_hourly"
CAPTURE, MAILER = "shop.Order_changes", "mailer"
#: By name; the password is the name. ann may do all, ben edit Variables, vera only look.
USERS = {"ann": "admin", "ben": "op", "vera": "viewer"}
SHARDS = (0, 1, 2)
MANY = 30
#: Hours of the export that are there; between them is what a test backfills.
DONE = ((0, 10), (12, 30))
HOURS = 40
DAG_FILE = """
from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import ChangefeedToParquetOperator

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
        self._shop()
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

    def _fill(self) -> None:
        """Write flights, with hours that none leave in, and export most of the hours."""
        for shard in SHARDS:
            for hour in range(HOURS):
                if hour % 24 not in (2, 3, 4):
                    self.flights.add(3 + (hour * 7 + shard) % 11, hour, shard)
        source = self.source
        done = [UlidRange(*_ends(first, last)) for first, last in DONE]
        for first, last in DONE:
            request = ExportRequest(FEED, self.store.path, CONSUMER, "tests/run", hours(first, last))
            plan = make_plan(source, self.store, request)
            self.flights.run(self.store, plan)
        from airflow_changefeed.cursors.cursors import advance

        advance(
            source, _Nowhere(), CONSUMER, FEED, dict.fromkeys(SHARDS, done), by="flights_hourly/first week"
        )

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

    def _shop(self) -> None:
        """Make a capture that a change has passed unseen, and a consumer that could not handle two events."""
        path = self.folder / "shop.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute('create table "shop.Order" (id integer primary key, status text)')
            source = SqliteFeedSource(str(path))
            source.enable_capture(CaptureSpec((TableCapture("shop.Order"),), name=CAPTURE))
            for number in range(5):
                connection.execute("insert into \"shop.Order\" values (?, 'paid')", (number,))
            source.drain(CAPTURE)
            spec = ConsumerSpec(MAILER, CAPTURE, max_attempts=1, on_poison=OnPoison.PARK)
            create_consumer(source, spec, Beginning.EARLIEST, by="ann")
            run_consumer(source, MAILER, CAPTURE, _refuse, max_events=2, backoff=Backoff(first=0, longest=0))
            triggers = connection.execute("select name from sqlite_master where type = 'trigger'").fetchall()
            for (name,) in triggers:
                connection.execute(f'drop trigger "{name}"')
            connection.execute("insert into \"shop.Order\" values (99, 'lost')")
        with suppress(CaptureGapError):
            source.seal(CAPTURE, source.now())

    def _write_dag(self) -> None:
        dags = self.folder / "dags"
        dags.mkdir()
        text = DAG_FILE.format(dag_id=DAG_ID, feed=FEED, path=self.store.path, consumer=CONSUMER)
        (dags / "flights.py").write_text(text)


def _refuse(event: object, connection: object) -> None:
    raise ValueError("the mail server knows no such address")


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
