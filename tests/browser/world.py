# SPDX-License-Identifier: Apache-2.0
"""An Airflow with three users, feeds of each engine, many feeds, and a database that is gone."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import httpx

from airflow_changefeed.core.cursor import CursorRow
from airflow_changefeed.core.window import Window
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.base import FeedSource
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.browser.exports import export, leave_hole
from tests.browser.shop import Shop
from tests.integration.contract.bench import set_up
from tests.integration.contract.engines import Engine, Table
from tests.integration.contract.sqlite_engine import SqliteEngine
from tests.system.airflow_api import AirflowApi
from tests.system.airflow_home import AirflowHome
from tests.unit.airflow.commands import connection_json
from tests.unit.export.flights import FEED, START, Flights, hours

CONSUMER, DAG_ID = "warehouse", "flights_hourly"
ARCHIVE, ON_DEMAND = "archive", "flights_on_demand"
#: A consumer whose last windows are complete, but not an older one.
HOLED = "holed"
#: By name; the password is the name. ann may do all, ben edit Variables, vera only look.
USERS = {"ann": "admin", "ben": "op", "vera": "viewer"}
SHARDS = (0, 1, 2)
MANY = 30
#: Hours of the exports that are there; between them is what a test backfills, or triggers.
DONE, ARCHIVED = ((0, 10), (12, 30)), ((0, 2), (3, 30))
HOURS = 40
#: The same on a server.
SERVED = ((0, 3), (5, 7)), ((0, 2), (3, 7))
#: Of each side: its exports, and its shop.
DAG_FILE = """
from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG
from airflow.timetables.interval import CronDataIntervalTimetable

from airflow_changefeed import (
    ChangefeedMergeOperator, ChangefeedSnapshotOperator, ChangefeedToParquetOperator, window_params
)

for conn_id, dag_id, on_demand, feed, path in {exports}:
    options = {{"task_id": "export", "feed": feed, "changefeed_conn_id": conn_id, "conn_id": "spark_default"}}
    with DAG(
        dag_id,
        schedule=CronDataIntervalTimetable("0 * * * *", timezone="UTC"),
        start_date=datetime(2013, 1, 1, tzinfo=timezone.utc),
        end_date=datetime(2013, 1, 3, tzinfo=timezone.utc),
        catchup=False,
    ) as dag:
        ChangefeedToParquetOperator(
            path=path, consumer="{consumer}", unit=timedelta(hours=1), local_below=1_000_000, **options
        )
    globals()[dag_id] = dag
    with DAG(on_demand, schedule=None, params=window_params()) as dag:
        ChangefeedToParquetOperator(
            path=f"{{path}}-archive", consumer="{archive}", local_below=1_000_000, **options
        )
    globals()[on_demand] = dag

for conn_id, schema, feed, export, lake, table in {shops}:
    with DAG(f"{{schema}}_current", schedule=None, params=window_params()) as dag:
        ChangefeedSnapshotOperator(
            task_id="base", feed=feed, output_path=lake, changefeed_conn_id=conn_id, conn_id="spark_default"
        )
        ChangefeedToParquetOperator(
            task_id="export", feed=feed, path=export, consumer="lake", changefeed_conn_id=conn_id,
            conn_id="spark_default",
        )
        ChangefeedMergeOperator(
            task_id="merge", feed=feed, path=export, output_path=lake, table=table, conn_id="spark_default"
        )
    globals()[dag.dag_id] = dag
"""


@dataclass(frozen=True)
class Side:
    """
    What the page shows of one engine: a feed whose cursors people move, and a shop.

    :param conn_id: of the feed.
    :param dag_id: exports each hour; its runs have intervals.
    :param on_demand: exports the hours that a run's params name; hour 2 is missing.
    :param store: of its export by the DAG.
    :param ends: hours to which two people want to move the cursor of shard 2.
    :param missing: the first hours that are missing, to backfill; exclusive end.
    :param hour: the last one before a missing one; that before it is complete, too.
    :param strip: how many of the last windows have which state.
    :param calendar: hours by their state in the calendar.
    """

    conn_id: str
    source: FeedSource
    feed: str
    dag_id: str
    on_demand: str
    store: ExportStore
    ends: tuple[int, int]
    missing: tuple[int, int]
    hour: int
    strip: Mapping[str, int]
    calendar: Mapping[str, Sequence[int]]
    shop_conn_id: str
    shop: Shop

    def cursor(self, shard: int = 0) -> CursorRow:
        """Return a cursor as the database has it."""
        return next(row for row in self.source.cursors(self.feed, CONSUMER) if row.shard == shard)


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
    :param server: a database of SQL Server; None without any.
    :param sides: by the names of their engines.
    """

    folder: Path
    server: Engine | None = None
    sides: dict[str, Side] = field(default_factory=dict)
    flights: Flights = field(init=False)
    store: ExportStore = field(init=False)
    home: AirflowHome = field(init=False)

    def __post_init__(self) -> None:
        self.flights = Flights.create(self.folder / "flights.db")
        self.store = ExportStore(str(self.folder / "export"), FEED)
        self._fill()
        self._many()
        shop = Shop(SqliteEngine(str(self.folder / "shop.db")), "shop", self.folder)
        self.sides["sqlite"] = Side(
            "flights",
            self.source,
            FEED,
            DAG_ID,
            ON_DEMAND,
            self.store,
            ends=(6, 8),
            missing=(10, 12),
            hour=29,
            strip={"before": 13, "complete": 28, "missing": 7},
            calendar={
                "complete": (0, 1, 5, 12, 29),
                "empty": (2, 3, 4, 26, 27),
                "missing": (10, 11, 30),
                "before": (-1,),
            },
            shop_conn_id="shop",
            shop=shop,
        )
        if self.server is not None:
            self.sides["mssql"] = self._on(self.server)
        for side in self.sides.values():
            side.shop.make()
        self._write_dags()
        passwords = self.folder / "passwords.json"
        passwords.write_text(json.dumps({name: name for name in USERS}))
        self.home = AirflowHome(
            self.folder / "airflow",
            dags=self.folder / "dags",
            connections={
                "flights": {"conn_type": "sqlite", "host": str(self.flights.path)},
                "many": {"conn_type": "sqlite", "host": str(self.folder / "many.db")},
                "gone": {"conn_type": "sqlite", "host": str(self.folder / "gone.db")},
                "spark_default": {"conn_type": "spark", "host": "local[1]"},
                **{
                    side.shop_conn_id: json.loads(connection_json(side.shop.source.describe()))
                    for side in self.sides.values()
                },
            },
            env={
                # Compatible servers on a busy machine take long for the first query of a session.
                "AIRFLOW__CHANGEFEED__PAGE_TIMEOUT": "60",
                "AIRFLOW__CHANGEFEED__PAGE_CONNECTIONS": "gone, many",
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
        archive = ExportStore(f"{self.store.path}-archive", FEED)
        export(self.source, self.store, CONSUMER, _windows(DONE), by="flights_hourly/first week")
        export(self.source, archive, ARCHIVE, _windows(ARCHIVED), by="flights_on_demand/first week")

    def _on(self, server: Engine) -> Side:
        """Make a feed of eight hours on a server, of which hours 3, 4 and 7 are missing, beside a shop."""
        bench = set_up(server, Table())
        for shard in SHARDS:
            for hour in range(8):
                bench.write(4, shard=shard, hint=START + timedelta(hours=hour, minutes=30))
        bench.source.drain(bench.feed)
        store = ExportStore(str(self.folder / "events"), bench.feed)
        archive = ExportStore(f"{store.path}-archive", bench.feed)
        done, archived = SERVED
        export(bench.source, store, CONSUMER, _windows(done), by="events_hourly/first week")
        export(bench.source, archive, ARCHIVE, _windows(archived), by="events_on_demand/first week")
        return Side(
            "server",
            bench.source,
            bench.feed,
            "events_hourly",
            "events_on_demand",
            store,
            ends=(1, 2),
            missing=(3, 5),
            hour=6,
            # It stopped more than a week ago: half of the windows come after it.
            strip={"before": 20, "complete": 5, "missing": 23},
            calendar={"complete": (0, 1, 2, 5, 6), "missing": (3, 4, 7), "before": (-1,)},
            shop_conn_id="server",
            shop=Shop(server, "store", self.folder),
        )

    def _many(self) -> None:
        """Make feeds enough for two pages, one of them with shards enough for three."""
        path = self.folder / "many.db"
        with closing(sqlite3.connect(path)) as connection:
            for number in range(MANY):
                connection.execute(f'create table "shop.Orders{number:02}" (id integer primary key)')
        self.many = source = SqliteFeedSource(str(path))
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
        leave_hole(source, "shop.Orders00", HOLED)

    def _write_dags(self) -> None:
        dags = self.folder / "dags"
        dags.mkdir()
        shops = [
            (side.shop_conn_id, shop.schema, shop.stock_capture, shop.export, shop.lake, shop.stock)
            for side in self.sides.values()
            for shop in (side.shop,)
        ]
        exports = [
            (side.conn_id, side.dag_id, side.on_demand, side.feed, side.store.path)
            for side in self.sides.values()
        ]
        text = DAG_FILE.format(shops=shops, exports=exports, consumer=CONSUMER, archive=ARCHIVE)
        (dags / "exports.py").write_text(text)


def _windows(done: Sequence[tuple[int, int]]) -> list[list[Window]]:
    """Return windows of hours, each from the first (inclusive) to the last (exclusive)."""
    return [hours(first, last) for first, last in done]
