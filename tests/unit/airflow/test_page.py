# SPDX-License-Identifier: Apache-2.0
"""The page's server: who gets in, what is shown of feeds, and what where a database does not answer."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from fastapi import FastAPI
from fastapi.testclient import TestClient

from airflow_changefeed import ChangefeedSensor, ChangefeedToParquetOperator
from airflow_changefeed.core.consumer import FeedOverview
from airflow_changefeed.core.ulid import Ulid
from airflow_changefeed.exceptions import SourceUnavailableError
from airflow_changefeed.plugins import connections
from airflow_changefeed.plugins.changefeed import URL_PREFIX
from airflow_changefeed.plugins.page import _TYPES
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED, START, insert
from tests.unit.airflow.page import CONN_ID, Visitor, mounted, pause, store_dags, store_export

pytestmark = since("3.1", "the page")


@pytest.fixture(autouse=True)
def stored(server: None, source: SqliteFeedSource, tmp_path: Path) -> None:
    """Give a DAG that exports the feed, ordered events, and a consumer that begins with them."""
    with DAG("page_hourly", schedule=None) as dag:
        ChangefeedSensor(task_id="wait", feed=FEED, consumer=CONSUMER)
        ChangefeedToParquetOperator(
            task_id="export", feed=FEED, consumer=CONSUMER, path=str(tmp_path / "out"), conn_id="spark"
        )
    store_dags(dag)
    pause("page_hourly", is_paused=False)
    source.drain(FEED)


@pytest.fixture
def viewer() -> Visitor:
    """Give somebody who may look."""
    return Visitor("VIEWER")


def test_the_page_and_its_files_are_served_and_take_nothing_from_elsewhere(viewer: Visitor) -> None:
    """All that the page names is there; browsers are told to load nothing else."""
    answer = viewer.client.get(f"{URL_PREFIX}/")
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    for name in _TYPES:
        file = viewer.client.get(f"{URL_PREFIX}/static/{name}")
        assert (file.status_code, "//cdn" in file.text) == (200, False)
    assert viewer.client.get(f"{URL_PREFIX}/static/..%2fchangefeed.py").status_code == 404


def test_connections_are_those_that_tasks_name(viewer: Visitor) -> None:
    """With the tasks, and without a look at any feed."""
    found = viewer.ask("connections")
    (connection,) = [one for one in found["connections"] if one["conn_id"] == CONN_ID]
    uses = {use["task_id"]: use for use in connection["uses"] if use["dag_id"] == "page_hourly"}
    assert (uses["export"]["feed"], uses["export"]["consumer"]) == (FEED, CONSUMER)
    assert (uses["export"]["has_windows"], uses["wait"]["has_windows"]) == (True, False)
    assert uses["export"]["may_backfill"] is False


def test_connections_of_the_configuration_are_shown_besides(
    viewer: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For feeds that no DAG names; a time limit that is none is refused by its name."""
    monkeypatch.setenv("AIRFLOW__CHANGEFEED__PAGE_CONNECTIONS", "more, other")
    named = [one["conn_id"] for one in viewer.ask("connections")["connections"]]
    assert {"more", "other"} <= set(named)
    for seconds in ("0", "-1", "61", "nan"):
        monkeypatch.setenv("AIRFLOW__CHANGEFEED__PAGE_TIMEOUT", seconds)
        for path, values in (("connections", {}), ("feeds", {"conn_id": CONN_ID})):
            detail = viewer.ask(path, 422, **values)["detail"]
            assert f"page_timeout in section [changefeed] of Airflow's configuration is {seconds}; " in detail


def test_feeds_are_summed_up(viewer: Visitor, source: SqliteFeedSource) -> None:
    """Shards, head, outbox, and how many events wait for each consumer."""
    source.begin_consumer(CONSUMER, FEED, {0: source.read_feed(FEED, 0, Ulid.MIN).events[0].ulid}, by="test")
    insert(source.database.path, range(36, 40), START)
    found = viewer.ask("feeds", conn_id=CONN_ID)
    (feed,) = found["feeds"]
    assert (feed["feed"], feed["shard_count"], feed["waiting"], feed["group"]) == (FEED, 2, 4, "trouble")
    assert feed["head"]["time"] == "2013-01-01T05:50:00Z"
    (consumer,) = feed["consumers"]
    assert (consumer["behind"], consumer["state"]) == (17, "missing")
    assert consumer["held"] == 0
    assert consumer["may_change"] is False


def test_a_lost_consumer_is_named(viewer: Visitor, source: SqliteFeedSource) -> None:
    """In the sum of its feed, and at its cursor with what to do."""
    source.seal(FEED, START + timedelta(hours=12))
    source.begin_consumer(CONSUMER, FEED, {0: Ulid.MIN, 1: Ulid.MIN}, by="test")
    source.begin_consumer("quick", FEED, {0: Ulid.floor(START + timedelta(hours=12)).previous()}, by="test")
    source.set_up_feed(FEED, max_hold=timedelta(hours=1))
    source.purge(FEED, START + timedelta(hours=1))
    (feed,) = viewer.ask("feeds", conn_id=CONN_ID)["feeds"]
    assert feed["max_hold"] == "1h"
    (lost,) = [one for one in feed["troubles"] if one["code"] == "consumer-lost"]
    assert (lost["consumer"], lost["count"], lost["severity"]) == (CONSUMER, 2, "error")
    assert f"cursor set {CONSUMER} --feed {FEED} --shard 0 --to earliest" in lost["remedy"]
    shards = viewer.ask("feed", conn_id=CONN_ID, feed=FEED)["shards"]
    cursors = {(one["consumer"], one["shard"]): one for shard in shards for one in shard["cursors"]}
    assert {of: one["is_lost"] for of, one in cursors.items()} == {
        (CONSUMER, "0"): True,
        (CONSUMER, "1"): True,
        ("quick", "0"): False,
    }
    assert f"cursor set {CONSUMER} --feed {FEED} --shard 1 --to earliest" in cursors[CONSUMER, "1"]["remedy"]
    assert cursors["quick", "0"]["remedy"] is None


def test_feeds_with_troubles_come_first_then_those_that_are_late(
    viewer: Visitor, source: SqliteFeedSource, database: str
) -> None:
    """Then the others, each by name."""
    for name in ("a_new", "b_lost", "c_new"):
        with closing(sqlite3.connect(database)) as connection:
            connection.execute(f"create table {name} (id integer primary key)")
        source.set_up_feed(name)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("drop table b_lost")
    source.begin_consumer("reader", FEED, dict.fromkeys((0, 1), Ulid.MIN), by="test")
    found = viewer.ask("feeds", conn_id=CONN_ID)["feeds"]
    assert [(one["feed"], one["group"]) for one in found] == [
        ("b_lost", "trouble"),
        (FEED, "late"),
        ("a_new", "rest"),
        ("c_new", "rest"),
    ]


def test_shards_come_page_by_page(viewer: Visitor, source: SqliteFeedSource, database: str) -> None:
    """A feed of many shards is read in pages, in a number of statements that does not grow with them."""
    with closing(sqlite3.connect(database)) as connection:
        for shard in range(2, 300):
            connection.execute('insert into "nyc.Flight" values (?, ?)', (1000 + shard, "JFK"))
            connection.execute(
                'insert into "changefeed.outbox:nyc.Flight" (shard_id, id) values (?, ?)',
                (shard, 1000 + shard),
            )
        connection.commit()
    found = viewer.ask("feed", conn_id=CONN_ID, feed=FEED, first=250, count=100)
    assert (found["shard_count"], found["first"]) == (300, 250)
    assert [shard["shard"] for shard in found["shards"]] == [str(shard) for shard in range(250, 300)]


def test_the_source_is_asked_as_often_for_many_feeds_as_for_few(
    viewer: Visitor, monkeypatch: pytest.MonkeyPatch, source: SqliteFeedSource
) -> None:
    """Each question costs a round trip to the database; the database is opened once for all of them."""
    asked: list[str] = []

    def noted(kind: Any, name: str) -> None:
        real = getattr(kind, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            asked.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(kind, name, call)

    def questions() -> list[str]:
        asked.clear()
        viewer.ask("feeds", conn_id=CONN_ID)
        return [*asked]

    source.begin_consumer(CONSUMER, FEED, {0: Ulid.MIN}, by="test")
    for name in ("feeds", "overview", "now", "shards", "cursors", "leases", "identity"):
        noted(SqliteFeedSource, name)
    noted(sqlite3, "connect")
    few = questions()
    for number in range(3):
        with closing(sqlite3.connect(source.database.path)) as connection:
            connection.execute(f"create table more{number} (id integer primary key)")
        source.set_up_feed(f"more{number}")
        source.begin_consumer(CONSUMER, f"more{number}", {0: Ulid.MIN}, by="test")
    assert questions() == few


def test_a_feed_that_has_lost_a_table_hides_no_other(
    viewer: Visitor, source: SqliteFeedSource, database: str
) -> None:
    """It has its error in the list, with what to do; whoever opens it gets the error."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute('create table "nyc.Lost" (id integer primary key)')
        source.set_up_feed("nyc.Lost")
        source.begin_consumer(CONSUMER, "nyc.Lost", {0: Ulid.MIN}, by="test")
        connection.execute('drop table "nyc.Lost"')
    lost, whole = viewer.ask("feeds", conn_id=CONN_ID)["feeds"]
    assert (whole["feed"], whole["problem"], whole["shard_count"]) == (FEED, None, 2)
    assert (lost["feed"], lost["consumers"]) == ("nyc.Lost", [])
    assert "estore it" in lost["problem"]
    assert viewer.ask("feed", 409, conn_id=CONN_ID, feed="nyc.Lost")["detail"] == lost["problem"]


def test_a_database_that_is_gone_does_not_keep_the_page_from_opening(viewer: Visitor, database: str) -> None:
    """The list of connections needs none; what is wrong is told to who may see the connection."""
    Path(database).rename(f"{database}.away")
    assert viewer.ask("connections")["connections"]
    answer = Visitor("OP").ask("feeds", 502, conn_id=CONN_ID)
    assert answer["error"] == "ConnectionNotUsableError"
    assert f"{database}: unable to open database file" in answer["detail"]
    words = viewer.ask("feeds", 502, conn_id=CONN_ID)["detail"]
    assert (database in words, "not available now" in words) == (False, True)


def test_more_questions_than_threads_wait_for_their_turn() -> None:
    """A database that answers is not said to hang; its threads keep no process from ending."""
    running, most, seen = threading.Semaphore(connections.MOST_EACH), threading.Event(), []

    def question() -> bool:
        is_free = running.acquire(blocking=False)
        if not is_free:
            return False
        seen.append(threading.current_thread().daemon)
        if len(seen) == connections.MOST_EACH:
            most.set()
        most.wait(30)
        running.release()
        return True

    async def ask_many() -> list[bool]:
        asked = [connections.ask("busy", question, timeout=60) for _ in range(12)]
        return await asyncio.gather(*asked)

    assert asyncio.run(ask_many()) == [True] * 12
    assert set(seen) == {True}


def test_what_nobody_waits_for_leaves_threads_to_others() -> None:
    """However many of its queries hang, the others are answered."""
    answered = threading.Event()

    async def ask_many() -> list[Any]:
        behind = [
            connections.ask("slow", lambda: answered.wait(30), timeout=0.2, most=connections.MOST_BEHIND)
            for _ in range(6)
        ]
        refused = await asyncio.gather(*behind, return_exceptions=True)
        return [*refused, await connections.ask("slow", lambda: "answered", timeout=10)]

    try:
        *refused, last = asyncio.run(ask_many())
    finally:
        answered.set()
    assert {type(one) for one in refused} == {SourceUnavailableError}
    assert last == "answered"


def test_other_methods_tell_nothing(viewer: Visitor) -> None:
    """Neither to who is logged in nor to others, nor does a browser keep the answer."""
    for visitor in (Visitor(None), viewer):
        for method in ("HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"):
            for path in ("", "static/page.js", "api/connections", "api/move"):
                answer = visitor.client.request(method, f"{URL_PREFIX}/{path}")
                assert (answer.status_code, FEED in answer.text) == (405, False)
                assert answer.headers["cache-control"] == "no-store"


def test_a_wrong_name_or_number_is_no_error_of_the_server(viewer: Visitor) -> None:
    """Names that a browser or a database could take for something else; a page far beyond the last."""
    for name in ("<img src=x onerror=alert(1)>", "a\"b'c/d%e?f#g h", "x" * 128, "../..", "\x00"):
        for path in ("feed", "waiters", "troubles", "history"):
            answer = viewer.ask(path, 404, conn_id=CONN_ID, feed=name, consumer=name)
            assert answer["error"] == "FeedNotFoundError"
        assert viewer.ask("feeds", 404, conn_id=name)["error"] is None
    for first in (1 << 63, 10**30):
        assert "first: " in viewer.ask("feed", 422, conn_id=CONN_ID, feed=FEED, first=first)["detail"]


def test_the_page_lies_below_an_airflow_that_has_a_path_of_its_own() -> None:
    """All that the page names is relative, so that a prefix of Airflow's address is kept."""
    airflow = FastAPI(root_path="/airflow")
    airflow.mount(URL_PREFIX, mounted().routes[-1].app)
    visitor = Visitor("VIEWER")
    client = TestClient(airflow, base_url="http://testserver", cookies=dict(visitor.client.cookies))
    page_text = client.get(f"/airflow{URL_PREFIX}/").text
    assert 'src="static/page.js"' in page_text
    for path in ("static/page.js", "api/connections"):
        assert client.get(f"/airflow{URL_PREFIX}/{path}").status_code == 200
    assert "Log in to" in TestClient(airflow).get(f"/airflow{URL_PREFIX}/").text


def test_a_database_that_does_not_answer_is_given_up(
    viewer: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is named; others, and the page, go on."""
    answered = threading.Event()

    def hang(self: SqliteFeedSource, *args: Any, **kwargs: Any) -> list[FeedOverview]:
        answered.wait(60)
        return []

    monkeypatch.setattr(SqliteFeedSource, "overview", hang)
    monkeypatch.setenv("AIRFLOW__CHANGEFEED__PAGE_TIMEOUT", "0.05")
    try:
        answer = viewer.ask("feeds", 503, conn_id=CONN_ID)
        assert f"connection '{CONN_ID}' did not answer within" in answer["detail"]
        for _ in range(connections.MOST_EACH - 1):
            viewer.ask("feeds", 503, conn_id=CONN_ID)
        assert "queries are already waiting" in viewer.ask("feeds", 503, conn_id=CONN_ID)["detail"]
        assert viewer.ask("connections")["connections"]
    finally:
        answered.set()


def test_no_answer_holds_a_secret(viewer: Visitor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither what a connection holds, nor what somebody wrote into an output's address."""
    host, secret = tmp_path / "none.db", "s3cr3t-word"
    monkeypatch.setattr(connections, "LOGIN_TIMEOUT", 1)
    server = {"conn_type": "mssql", "host": "127.0.0.1", "port": 1, "schema": "x", "login": "me"}
    monkeypatch.setenv("AIRFLOW_CONN_CHANGEFEED_DEFAULT", json.dumps({**server, "password": secret}))
    store_export("page_secret", None, {"consumer": "other", "path": f"s3://key:{secret}@bucket/{host}"})
    paths = ("connections", f"feeds?conn_id={CONN_ID}")
    answers = [
        visitor.client.get(f"{URL_PREFIX}/api/{path}")
        for visitor in (viewer, Visitor("OP"))
        for path in paths
    ]
    assert [answer.status_code for answer in answers] == [200, 503, 200, 503]
    assert "127.0.0.1" not in answers[1].text
    assert "Nothing is listening on 127.0.0.1 port 1" in answers[3].text
    assert all(secret not in answer.text for answer in answers)
    assert "//***@bucket" in answers[0].text
