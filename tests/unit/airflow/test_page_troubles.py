# SPDX-License-Identifier: Apache-2.0
"""What the page says that people have to resolve: gaps of captures, and events that consumers parked."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from airflow.sdk import DAG

from airflow_changefeed import ChangefeedSensor
from airflow_changefeed.consumers.begin import create_consumer
from airflow_changefeed.consumers.handlers.attempt import Backoff
from airflow_changefeed.consumers.handlers.run import run_consumer
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, DeadLetterState, OnPoison
from airflow_changefeed.exceptions import CaptureGapError
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED
from tests.unit.airflow.page import CONN_ID, Visitor, store_dags

pytestmark = since("3.1", "the page")

CAPTURE = "fares changes"
NOTHING = {"count": 0, "first": [], "command": f"airflow-changefeed capture resolve {FEED} --conn-id ..."}


@pytest.fixture(autouse=True)
def stored(server: None, database: str, source: SqliteFeedSource) -> None:
    """Give a DAG that names the connection, ordered events, and a captured table."""
    with DAG("page_troubles", schedule=None) as dag:
        ChangefeedSensor(task_id="wait", feed=FEED, consumer=CONSUMER)
    store_dags(dag)
    source.drain(FEED)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("create table fares (id integer primary key, price integer)")
        source.enable_capture(CaptureSpec((TableCapture("fares"),), name=CAPTURE))


def troubles(role: str, feed: str = FEED) -> dict:
    """Ask as somebody."""
    return Visitor(role).ask("troubles", conn_id=CONN_ID, feed=feed)


def park(source: SqliteFeedSource, count: int, problem: str) -> None:
    """Let a consumer fail at its first events."""
    spec = ConsumerSpec("mailer", FEED, on_poison=OnPoison.PARK, max_attempts=1)
    create_consumer(source, spec, Beginning.EARLIEST, by="test")

    def refuse(event: object, connection: object) -> None:
        raise ValueError(problem)

    backoff = Backoff(first=0, longest=0)
    run_consumer(source, "mailer", FEED, refuse, max_events=count, backoff=backoff)


def test_where_nothing_is_the_matter_nothing_is_told() -> None:
    """Neither of a plain feed nor of a capture."""
    assert troubles("VIEWER") == {"gaps": NOTHING, "dead_letters": {}}
    assert troubles("VIEWER", CAPTURE)["gaps"]["count"] == 0


def test_open_gaps_are_told_until_somebody_resolves_them(source: SqliteFeedSource, database: str) -> None:
    """With the reason why nothing is sealed, and the command that resolves it."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        names = connection.execute("select name from sqlite_master where tbl_name = 'fares'").fetchall()
        for (name,) in names:
            connection.execute(f'drop trigger if exists "{name}"')
        connection.execute("insert into fares values (1, 99)")
    with pytest.raises(CaptureGapError):
        source.seal(CAPTURE, source.now())
    found = troubles("VIEWER", CAPTURE)["gaps"]
    open_gaps = source.capture_gaps(CAPTURE)
    assert found["count"] == len(open_gaps) > 0
    assert [(one["table"], one["reason"]) for one in found["first"]] == [
        (gap.table, gap.reason) for gap in open_gaps[:5]
    ]
    assert found["command"] == "airflow-changefeed capture resolve 'fares changes' --conn-id ..."
    assert troubles("VIEWER")["gaps"] == NOTHING
    source.resolve_capture(CAPTURE, by="test", note="known")
    assert troubles("VIEWER", CAPTURE)["gaps"]["count"] == 0


def test_dead_letters_are_told_until_they_are_resolved(source: SqliteFeedSource) -> None:
    """The first ones and the number of all."""
    park(source, 7, "no such airport")
    (mailer,) = troubles("OP")["dead_letters"].items()
    assert mailer[0] == "mailer"
    assert mailer[1]["command"].startswith("airflow-changefeed dead-letters list --consumer mailer --feed ")
    assert (mailer[1]["count"], len(mailer[1]["first"])) == (7, 5)
    (first, *_) = mailer[1]["first"]
    dead_letter = source.dead_letters(FEED)[0]
    assert (first["number"], first["event"]["ulid"], first["state"]) == (
        dead_letter.number,
        str(dead_letter.ulid),
        "parked",
    )
    assert "no such airport" in first["reason"]
    for one in source.dead_letters(FEED):
        source.resolve_dead_letter(one.number, DeadLetterState.DROPPED, by="test", note="gone")
    assert troubles("OP")["dead_letters"] == {}


def test_why_an_event_failed_is_told_to_who_may_change_the_consumer(source: SqliteFeedSource) -> None:
    """The words of a handler may quote the event; they are cut, and have no address's password in them."""
    park(source, 1, "no answer of postgresql://shop:hunter2@db/orders" + "x" * 1_000)
    (told,) = troubles("OP")["dead_letters"]["mailer"]["first"]
    assert "no answer of" in told["reason"]
    assert "hunter2" not in told["reason"]
    assert len(told["reason"]) == 300
    (hidden,) = troubles("VIEWER")["dead_letters"]["mailer"]["first"]
    assert hidden == {**told, "reason": None}


def test_an_unknown_feed_is_said_to_be_unknown() -> None:
    """As everywhere."""
    found = Visitor("VIEWER").ask("troubles", 404, conn_id=CONN_ID, feed="nyc.Nothing")
    assert found["error"] == "FeedNotFoundError"
