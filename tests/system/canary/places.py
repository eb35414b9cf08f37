# SPDX-License-Identifier: Apache-2.0
"""A canary for every place that a secret can come from, and a feed to export."""

from __future__ import annotations

import base64
import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.system.canary.search import Search, canary
from tests.system.canary.servers import garbage_server, repeating_server
from tests.system.processes import free_port

FEED = "nyc.Flight"
START = datetime(2013, 1, 1, tzinfo=timezone.utc)
HERE = Path(__file__).parent
SOURCES = (
    *("feedpassword", "feedextra", "sqlpassword", "sqlclientsecret", "sqltoken", "storepassword", "storekey"),
    *("storesecret", "storetoken", "storenested", "hdfstoken", "sparkpassword", "sparkextra", "sparkkeytab"),
)


@dataclass
class Places:
    """
    Where a run's secrets come from, and where it leaves things.

    :ivar environment: of whatever runs the DAG.
    :ivar connections: by id, as Airflow's JSON.
    :ivar requests: what the storage was asked.
    """

    folder: Path
    search: Search
    connections: Mapping[str, Mapping[str, Any]]
    environment: Mapping[str, str]
    requests: list[bytes]
    ui: int

    @property
    def temp(self) -> Path:
        """Folder of temporary files."""
        return self.folder / "temp"

    @property
    def out(self) -> Path:
        """The export."""
        return self.folder / "out"

    @property
    def events(self) -> Path:
        """Spark's event logs."""
        return self.folder / "events"

    @property
    def dags(self) -> Path:
        """The folder of the DAG."""
        return self.folder / "dags"


def _connections(database: Path, sql: int, canaries: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    store = {
        "key": canaries["storekey"],
        "secret": canaries["storesecret"],
        "token": canaries["storetoken"],
        "client_kwargs": {"headers": {"Authorization": [canaries["storenested"]]}},
        "auto_mkdir": True,
    }
    return {
        "canary_feed": {
            "conn_type": "sqlite",
            "host": str(database),
            "password": canaries["feedpassword"],
            "extra": {"token": canaries["feedextra"]},
        },
        "canary_sql": {
            "conn_type": "mssql",
            "host": "127.0.0.1",
            "port": sql,
            "schema": "shop",
            "login": "reader",
            "password": canaries["sqlpassword"],
            "extra": {
                "encrypt": "no",
                "client_secret": canaries["sqlclientsecret"],
                "access_token": canaries["sqltoken"],
            },
        },
        "canary_store": {"conn_type": "generic", "password": canaries["storepassword"], "extra": store},
        "canary_hdfs": {"conn_type": "generic", "extra": {"token": canaries["hdfstoken"]}},
        "canary_spark": {
            "conn_type": "spark",
            "host": "local[2]",
            "password": canaries["sparkpassword"],
            "extra": {
                "token": canaries["sparkextra"],
                "keytab": base64.b64encode(canaries["sparkkeytab"].encode()).decode(),
                "principal": "canary",
            },
        },
    }


@contextmanager
def places(folder: Path) -> Iterator[Places]:
    """Put a canary into each place, make the feed, and serve what fails."""
    canaries = {name: canary(name) for name in SOURCES}
    for name in ("temp", "out", "events", "dags"):
        (folder / name).mkdir()
    (folder / "dags" / "canary.py").write_text(
        (HERE / "dag.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    _make_feed(folder / "feeds.db")
    with ExitStack() as stack:
        sql = stack.enter_context(garbage_server())
        hdfs, requests = stack.enter_context(repeating_server())
        ui = free_port()
        connections = _connections(folder / "feeds.db", sql, canaries)
        environment = {
            "TMPDIR": str(folder / "temp"),
            "CANARY_OUT": str(folder / "out"),
            "CANARY_EVENTS": (folder / "events").as_uri(),
            "CANARY_HDFS": str(hdfs),
            "CANARY_UI": str(ui),
            "AIRFLOW__LOGGING__LOGGING_LEVEL": "DEBUG",
            **{f"AIRFLOW_CONN_{name.upper()}": json.dumps(each) for name, each in connections.items()},
        }
        yield Places(folder, Search(canaries), connections, environment, requests, ui)


def _make_feed(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f'create table "{FEED}" (id integer primary key, origin text)')
        connection.commit()
        SqliteFeedSource(str(path)).set_up_feed(FEED)
        for number in range(36):
            hint = int((START + number * timedelta(minutes=10)).timestamp() * 1000)
            connection.execute(f'insert into "{FEED}" values (?, ?)', (number, "JFK"))
            connection.execute(
                f'insert into "changefeed.outbox:{FEED}" (shard_id, time_hint, id) values (?, ?, ?)',
                (number % 2, hint, number),
            )
        connection.commit()
