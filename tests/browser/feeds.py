# SPDX-License-Identifier: Apache-2.0
"""
Feeds in all states, for a look at the page and for its benchmark.

``python -m tests.browser.feeds FOLDER COUNT PORT`` serves the page alone, with so many feeds, to anybody on
this machine; all of Airflow with all engines is in ``world``.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import sys
from contextlib import closing, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, OnPoison
from airflow_changefeed.core.ulid import Ulid, UlidRange
from airflow_changefeed.core.window import Window
from airflow_changefeed.exceptions import CaptureGapError
from airflow_changefeed.output.store import ExportStore
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.browser.exports import Nowhere, export

CONN_ID = "shop"
HOUR = timedelta(hours=1)
#: Hours with events, and shards.
HOURS, SHARDS = 60, 2
#: What is the matter with every thirtieth feed; all others are as they should be.
STATES = ("mails", "gap", "stopped", "hole", "new", "lost", "old")
EVERY = 30


def names(count: int) -> dict[str, str]:
    """Return feeds with their states."""
    states = [STATES[at] if (at := number % EVERY) < len(STATES) else "" for number in range(count)]
    return {f"shop.{(state or 'Orders').title()}{number:03}": state for number, state in enumerate(states)}


def fill(folder: Path, count: int) -> None:
    """Make a database with so many feeds, each with its consumer, and exports of a few of them."""
    path = str(folder / "feeds.db")
    source = SqliteFeedSource(path)
    now = source.now().replace(minute=0, second=0, microsecond=0)
    for feed, state in names(count).items():
        _feed(source, path, feed, state, now, folder)


def _feed(source: SqliteFeedSource, path: str, feed: str, state: str, now: datetime, folder: Path) -> None:
    start = datetime(2013, 1, 1, tzinfo=timezone.utc) if state == "old" else now - HOURS * HOUR
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        if state == "gap":
            _gap(source, connection, feed)
            return
        connection.execute(f'create table "{feed}" (id integer primary key)')
        source.set_up_feed(feed)
        connection.execute("begin")
        for number in range(HOURS * SHARDS):
            hint = int((start + number // SHARDS * HOUR + 7 * HOUR / 60).timestamp() * 1000)
            connection.execute(f'insert into "{feed}" values (?)', (number,))
            outbox = f'insert into "changefeed.outbox:{feed}" (shard_id, time_hint, id) values (?, ?, ?)'
            connection.execute(outbox, (number % SHARDS, hint, number))
        connection.execute("commit")
    source.drain(feed)
    if state == "new":
        return
    if state == "mails":
        _mails(source, feed)
        return
    end = start + HOURS * HOUR
    source.seal(feed, end)
    done = {"stopped": [(0, 40)], "hole": [(0, 50), (52, HOURS)], "old": [(0, 30)]}.get(state, [(0, HOURS)])
    windows = [(start + first * HOUR, start + last * HOUR) for first, last in done]
    by = f"{dag_id(feed)}/run/export/1"
    if state in ("hole", "old", "stopped"):
        store = ExportStore(str(folder / "out" / feed), feed)
        hours = [
            [
                Window(first + number * HOUR, first + (number + 1) * HOUR)
                for number in range((last - first) // HOUR)
            ]
            for first, last in windows
        ]
        export(source, store, "warehouse", hours, by=by)
        return
    source.begin_consumer("warehouse", feed, dict.fromkeys(range(SHARDS), _before(start)), by=by)
    if state == "lost":
        source.set_up_feed(feed, max_hold=HOUR)
        source.purge(feed, start + 9 * HOUR)
        return
    from airflow_changefeed.cursors.cursors import advance

    ranges = [UlidRange(_before(first), _before(last)) for first, last in windows]
    advance(source, Nowhere(), "warehouse", feed, dict.fromkeys(range(SHARDS), ranges), by=by)


def _before(time: datetime) -> Ulid:
    return Ulid.floor(time).previous()


def _mails(source: SqliteFeedSource, feed: str) -> None:
    from airflow_changefeed.consumers.run import Backoff, run_consumer
    from airflow_changefeed.consumers.settings import create_consumer

    def refuse(event: object, connection: object) -> None:
        raise ValueError("the mail server knows no such address")

    spec = ConsumerSpec("mailer", feed, max_attempts=1, on_poison=OnPoison.PARK)
    create_consumer(source, spec, Beginning.EARLIEST, by="ann")
    run_consumer(source, "mailer", feed, refuse, max_events=2, backoff=Backoff(first=0, longest=0))


def _gap(source: SqliteFeedSource, connection: sqlite3.Connection, feed: str) -> None:
    from airflow_changefeed.consumers.settings import create_consumer

    table = f"{feed}_rows"
    connection.execute(f'create table "{table}" (id integer primary key, price integer)')
    spec = CaptureSpec((TableCapture(table),), name=feed)
    source.enable_capture(spec)
    create_consumer(source, ConsumerSpec("billing", feed), Beginning.EARLIEST, by="ann")
    triggers = connection.execute(
        "select name from sqlite_master where type = 'trigger' and tbl_name = ?", (table,)
    )
    for (name,) in triggers.fetchall():
        connection.execute(f'drop trigger "{name}"')
    connection.execute(f'insert into "{table}" values (1, 99)')
    with suppress(CaptureGapError):
        source.seal(feed, source.now())
    source.enable_capture(spec)


def dag_id(feed: str) -> str:
    """Return the DAG that exports a feed."""
    return f"export_{feed.rpartition('.')[2].lower()}"


def write_dags(folder: Path, count: int) -> None:
    """Write a DAG for each feed where the DAG processor writes them; that of what has stopped is paused."""
    from airflow.models.dag import DagModel
    from airflow.sdk import DAG
    from airflow.timetables.interval import CronDataIntervalTimetable
    from airflow.utils.session import create_session

    from airflow_changefeed import ChangefeedFreshnessOperator, ChangefeedToParquetOperator
    from tests.unit.airflow.page import store_dags

    dags, states = [], names(count)
    for feed, state in states.items():
        if state in ("mails", "gap"):
            continue
        timetable = CronDataIntervalTimetable("0 * * * *", timezone="UTC")
        start = datetime(2013, 1, 1, tzinfo=timezone.utc)
        with DAG(dag_id(feed), schedule=timetable, start_date=start, catchup=False) as dag:
            ChangefeedToParquetOperator(
                task_id="export",
                feed=feed,
                consumer="warehouse",
                path=str(folder / "out" / feed),
                changefeed_conn_id=CONN_ID,
                conn_id="spark_default",
                unit=HOUR,
            )
        dags.append(dag)
    with DAG("watch", schedule=None) as dag:
        ChangefeedFreshnessOperator(task_id="watch", max_age=2 * HOUR, changefeed_conn_id=CONN_ID)
    store_dags(*dags, dag)
    paused = {dag_id(feed) for feed, state in states.items() if state == "stopped"}
    with create_session() as session:
        for model in session.query(DagModel):
            model.is_paused = model.dag_id in paused


def environment(folder: Path) -> dict[str, str]:
    """Return what an Airflow of these feeds finds in its environment."""
    host = {"conn_type": "sqlite", "host": str(folder / "feeds.db")}
    return {
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CHANGEFEED__PAGE_CONNECTIONS": CONN_ID,
        "AIRFLOW__DATABASE__LOAD_DEFAULT_CONNECTIONS": "False",
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "ERROR",
        f"AIRFLOW_CONN_{CONN_ID.upper()}": json.dumps(host),
    }


def visitor_app() -> Any:
    """Return the page as Airflow mounts it, with an administrator's token in each request."""
    from airflow.api_fastapi.app import create_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    from tests.unit.airflow.page import mounted

    token = create_auth_manager().generate_jwt(SimpleAuthManagerUser(username="ann", role="ADMIN"))
    app = mounted()

    async def logged_in(scope: Any, receive: Any, send: Any) -> None:
        cookie = (b"cookie", f"_token={token}".encode())
        await app({**scope, "headers": [*scope.get("headers", []), cookie]}, receive, send)

    return logged_in


def main(folder: Path, count: int, port: int) -> None:
    """Serve the page."""
    import uvicorn
    from airflow.utils.db import initdb

    if not (folder / "feeds.db").exists():
        initdb()
        fill(folder, count)
        write_dags(folder, count)
    uvicorn.run(visitor_app(), port=port, log_level="warning", lifespan="off")


if __name__ == "__main__":
    root = Path(sys.argv[1])
    if os.environ.get("AIRFLOW_HOME") != str(root / "airflow"):
        root.mkdir(parents=True, exist_ok=True)
        # Airflow reads its settings when it is first imported, which has happened.
        os.environ.update(environment(root))
        os.execv(sys.executable, [sys.executable, "-m", "tests.browser.feeds", *sys.argv[1:]])  # noqa: S606
    main(root, int(sys.argv[2]), int(sys.argv[3]))
