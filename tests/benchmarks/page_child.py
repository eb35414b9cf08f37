# SPDX-License-Identifier: Apache-2.0
"""
Opens the page as a browser does, against the page's application in this process.

``python -m tests.benchmarks.page_child FOLDER``: prints seconds of each question, and how many statements the
feeds' database ran, as JSON.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import create_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.utils.db import initdb
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.plugins.changefeed import ChangefeedPlugin
from airflow_changefeed.plugins.page import _TYPES
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.browser.feeds import CONN_ID, write_dags
from tests.browser.feeds import fill as in_all_states

FEEDS, SHARDS, EVENTS, BIG = 300, 10, 20, 10_000
ROUNDS = 5
FILES = tuple(name for name in _TYPES if not name.endswith(".svg"))
START = datetime(2026, 3, 1, tzinfo=timezone.utc)


def fill(path: Path, feeds: int, shards: int, events: int, *, is_ordered: bool = True) -> None:
    """
    Make feeds with events, and a consumer in the middle of each shard.

    :param is_ordered: whether the events leave the outbox; a transaction for each shard, so it takes long.
    """
    with closing(sqlite3.connect(path)) as connection:
        for number in range(feeds):
            connection.execute(f'create table "bench.Feed{number:03}" (id integer primary key)')
    source = SqliteFeedSource(str(path))
    for number in range(feeds):
        feed = f"bench.Feed{number:03}"
        source.set_up_feed(feed)
        with closing(sqlite3.connect(path)) as connection:
            rows = [
                (
                    shard,
                    int((START + event * timedelta(minutes=1)).timestamp() * 1000),
                    shard * events + event,
                )
                for shard in range(shards)
                for event in range(events)
            ]
            connection.executemany(f'insert into "{feed}" values (?)', [(key,) for *_, key in rows])
            outbox = f'insert into "changefeed.outbox:{feed}" (shard_id, time_hint, id) values (?, ?, ?)'
            connection.executemany(outbox, rows)
            connection.commit()
        middle = Ulid.MIN
        if is_ordered:
            source.drain(feed)
            middle = Ulid.floor(START + events // 2 * timedelta(minutes=1)).previous()
        source.begin_consumer("warehouse", feed, dict.fromkeys(range(shards), middle), by="benchmark")


class Counting:
    """Counts the statements that SQLite runs on connections to one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.count, self._connect = folder, 0, sqlite3.connect
        sqlite3.connect = self.connect  # type: ignore[assignment] # until the end

    def connect(self, *args: Any, **kwargs: Any) -> sqlite3.Connection:
        """Open a connection, watched if it is to a feed."""
        connection: sqlite3.Connection = self._connect(*args, **kwargs)
        if str(self.folder) in str(args[0]):
            connection.set_trace_callback(self._note)
        return connection

    def _note(self, statement: str) -> None:
        self.count += 1


def main(folder: Path) -> None:
    """Measure."""
    feeds = folder / "feeds"
    feeds.mkdir()
    in_all_states(folder, FEEDS)
    fill(feeds / "few.db", 1, SHARDS, EVENTS)
    fill(feeds / "big.db", 1, BIG, 1, is_ordered=False)
    initdb()
    write_dags(folder, FEEDS)
    app = FastAPI()
    for one in ChangefeedPlugin.fastapi_apps:
        app.mount(one["url_prefix"], one["app"])
    client = TestClient(app)
    token = create_auth_manager().generate_jwt(SimpleAuthManagerUser(username="bench", role="ADMIN"))
    client.cookies.set("_token", token)
    counting = Counting(folder)

    def ask(path: str) -> tuple[float, int]:
        before, started = counting.count, time.perf_counter()
        answer = client.get(f"/changefeed/{path}")
        taken = time.perf_counter() - started
        assert answer.status_code == 200, answer.text
        return taken, counting.count - before

    first = ["", *(f"static/{name}" for name in FILES), "api/connections", f"api/feeds?conn_id={CONN_ID}"]
    rounds, cpu = [], []
    for _ in range(ROUNDS + 1):
        before = time.process_time()
        rounds.append(sum(ask(path)[0] for path in first))
        cpu.append(time.process_time() - before)
    before = time.process_time()
    all_feeds = [ask(f"api/feeds?conn_id={CONN_ID}") for _ in range(ROUNDS)]
    all_cpu = (time.process_time() - before) / ROUNDS
    shard_pages = [ask(f"api/feed?conn_id=big&feed=bench.Feed000&first={BIG - 25}") for _ in range(ROUNDS)]
    statements = {
        name: ask(f"api/feed?conn_id={name}&feed=bench.Feed000&count=500")[1] for name in ("few", "big")
    }
    print(
        json.dumps(
            {
                # The first opening of a server's life reads the page's modules.
                "cold": rounds[0],
                "open": sorted(rounds[1:])[ROUNDS // 2],
                "open_cpu": sorted(cpu[1:])[ROUNDS // 2],
                "all": sorted(all_feeds)[ROUNDS // 2][0],
                "all_cpu": all_cpu,
                "statements": all_feeds[0][1],
                "big": sorted(shard_pages)[ROUNDS // 2][0],
                "few_statements": statements["few"],
                "big_statements": statements["big"],
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
