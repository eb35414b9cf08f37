# SPDX-License-Identifier: Apache-2.0
"""What the page says that people have to resolve: gaps of captures, and events that consumers parked."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_changefeed import ChangefeedSensor
from airflow_changefeed.consumers.run import Backoff, run_consumer
from airflow_changefeed.consumers.settings import create_consumer
from airflow_changefeed.core.capture import CaptureSpec, TableCapture
from airflow_changefeed.core.consumer import Beginning, ConsumerSpec, DeadLetterState, OnPoison
from airflow_changefeed.core.values import format_time
from airflow_changefeed.doctor.airflow import DagState
from airflow_changefeed.doctor.freshness import check_freshness
from airflow_changefeed.exceptions import CaptureGapError
from airflow_changefeed.sources.sqlite import SqliteFeedSource
from tests.clocks import after_now
from tests.minors import since
from tests.unit.airflow.conftest import CONSUMER, FEED
from tests.unit.airflow.page import CONN_ID, Visitor, store_dags

pytestmark = since("3.1", "the page")

HOUR = timedelta(hours=1)
CAPTURE = "fares changes"
NOTHING = {
    "count": 0,
    "first": [],
    "command": f"airflow-changefeed capture resolve {FEED} --note ... --conn-id {CONN_ID}",
}
PLACE = {"conn_id": CONN_ID, "feed": CAPTURE}
LETTER = {"conn_id": CONN_ID, "feed": FEED, "consumer": "mailer"}


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


def listed(feed: str = CAPTURE) -> dict[str, Any]:
    """Return what the list of feeds says of one, which is what its own page says."""
    visitor = Visitor("VIEWER")
    (found,) = [one for one in visitor.ask("feeds", conn_id=CONN_ID)["feeds"] if one["feed"] == feed]
    detail = visitor.ask("feed", conn_id=CONN_ID, feed=feed)
    known = [one["code"] for one in detail["troubles"]]
    assert {one["code"] for one in found["troubles"]} <= set(known)
    return {
        **found,
        "open_gaps": sum(one["count"] for one in found["troubles"] if one["code"] == "capture-gap"),
    }


def park(source: SqliteFeedSource, count: int, problem: str) -> None:
    """Let a consumer fail at its first events."""
    spec = ConsumerSpec("mailer", FEED, on_poison=OnPoison.PARK, max_attempts=1)
    create_consumer(source, spec, Beginning.EARLIEST, by="test")

    def refuse(event: object, connection: object) -> None:
        raise ValueError(problem)

    backoff = Backoff(first=0, longest=0)
    run_consumer(source, "mailer", FEED, refuse, max_events=count, backoff=backoff)


def miss_a_change(source: SqliteFeedSource, database: str) -> None:
    """Let a change pass the capture unseen, and find the gap."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        names = connection.execute("select name from sqlite_master where tbl_name = 'fares'").fetchall()
        for (name,) in names:
            connection.execute(f'drop trigger if exists "{name}"')
        connection.execute("insert into fares values (1, 99)")
    with pytest.raises(CaptureGapError):
        source.seal(CAPTURE, source.now())


def test_the_list_of_feeds_says_what_freshness_says_of_a_gap(source: SqliteFeedSource, database: str) -> None:
    """A consumer that has read all is complete until the gap: what the capture missed is in no feed."""
    create_consumer(source, ConsumerSpec("billing", CAPTURE), Beginning.LATEST, by="test")
    assert (listed()["open_gaps"], listed()["group"]) == (0, "rest")
    assert listed()["consumers"][0]["state"] == "complete"
    sealed = source.now() - 3 * HOUR
    source.seal(CAPTURE, sealed)
    miss_a_change(source, database)
    (freshness,) = check_freshness(source, None, DagState, HOUR, feed=CAPTURE).consumers
    found = listed()
    (consumer,) = found["consumers"]
    assert (found["open_gaps"], found["group"]) == (1, "trouble")
    assert consumer["complete_until"] == format_time(freshness.complete_until)
    assert abs(freshness.complete_until - sealed) < timedelta(milliseconds=1)
    assert (consumer["state"], freshness.is_fresh) == ("missing", False)
    assert consumer["strip"]["states"][-4:-1] == ["missing"] * 3
    source.resolve_capture(CAPTURE, note="counted", by="test")
    (consumer,) = listed()["consumers"]
    assert (listed()["open_gaps"], consumer["state"]) == (0, "complete")
    assert "missing" not in consumer["strip"]["states"]


def test_open_gaps_are_told_until_somebody_resolves_them(source: SqliteFeedSource, database: str) -> None:
    """With the reason why nothing is sealed, and the command that resolves it."""
    miss_a_change(source, database)
    found = troubles("VIEWER", CAPTURE)["gaps"]
    open_gaps = source.capture_gaps(CAPTURE)
    assert found["count"] == len(open_gaps) > 0
    assert [(one["table"], one["reason"]) for one in found["first"]] == [
        (gap.table, gap.reason) for gap in open_gaps[:5]
    ]
    assert (
        found["command"]
        == f"airflow-changefeed capture resolve 'fares changes' --note ... --conn-id {CONN_ID}"
    )
    assert troubles("VIEWER") == {"capture": None, "gaps": NOTHING, "dead_letters": {}}
    source.resolve_capture(CAPTURE, by="test", note="known")
    assert troubles("VIEWER", CAPTURE)["gaps"]["count"] == 0


def test_dead_letters_are_told_until_they_are_resolved(source: SqliteFeedSource) -> None:
    """
    The first ones and the number of all; why they failed only to who may change the consumer.

    The words of a handler may quote the event; they are cut, and have no address's password in them.
    """
    park(source, 7, "no answer of postgresql://shop:hunter2@db/orders" + "x" * 1_000)
    ((consumer, letters),) = troubles("OP")["dead_letters"].items()
    assert consumer == "mailer"
    assert letters["command"].startswith("airflow-changefeed dead-letters list --consumer mailer --feed ")
    assert (letters["count"], len(letters["first"])) == (7, 5)
    first, parked = letters["first"][0], source.dead_letters(FEED)[0]
    assert (first["number"], first["event"]["ulid"]) == (parked.number, str(parked.ulid))
    assert (first["state"], len(first["reason"])) == ("parked", 300)
    assert ("no answer of" in first["reason"], "hunter2" in first["reason"]) == (True, False)
    hidden = troubles("VIEWER")["dead_letters"]["mailer"]["first"][0]
    assert hidden == {**first, "reason": None}
    for one in source.dead_letters(FEED):
        source.resolve_dead_letter(one.number, DeadLetterState.DROPPED, by="test", note="gone")
    assert troubles("OP")["dead_letters"] == {}


def add_a_column(database: str, name: str = "tax") -> None:
    """Change a captured table."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute(f"alter table fares add column {name} integer")


def test_a_gap_that_nobody_has_seen_is_not_resolved_with_the_others(
    source: SqliteFeedSource, database: str
) -> None:
    """The page showed one; another was found meanwhile, for which nobody has done anything."""
    miss_a_change(source, database)
    seen = troubles("OP", CAPTURE)["capture"]
    assert (seen["may_change"], troubles("VIEWER", CAPTURE)["capture"]["may_change"]) == (True, False)
    add_a_column(database)
    with pytest.raises(CaptureGapError):
        source.seal(CAPTURE, source.now())
    body = {"note": "  known ", "resource_version": seen["resource_version"]}
    assert Visitor("OP").send("resolve_gaps", body, 409, **PLACE)["error"] == "StaleVersionError"
    assert all(gap.resolved_at is None for gap in source.capture_gaps(CAPTURE))
    body["resource_version"] = troubles("OP", CAPTURE)["capture"]["resource_version"]
    assert Visitor("OP").send("resolve_gaps", body, **PLACE)["open_gaps"] == 0
    gap = source.capture_gaps(CAPTURE)[-1]
    assert (gap.resolved_by, gap.note) == ("op", "known")


def test_a_column_that_nobody_has_seen_is_not_captured_with_the_others(
    source: SqliteFeedSource, database: str
) -> None:
    """The page showed one; another came meanwhile. Nor is a capture refreshed twice."""
    found = troubles("VIEWER", CAPTURE)["capture"]
    assert (found["is_enabled"], found["tables"], found["drift"]) == (True, ["fares"], [])
    add_a_column(database)
    found = troubles("OP", CAPTURE)["capture"]
    assert found["drift"] == list(source.capture(CAPTURE).drift)
    assert found["command"] == f"airflow-changefeed capture refresh 'fares changes' --conn-id {CONN_ID}"
    add_a_column(database, "secret")
    seen = {"resource_version": found["resource_version"]}
    assert Visitor("OP").send("refresh_capture", seen, 409, **PLACE)["error"] == "StaleVersionError"
    assert len(source.capture(CAPTURE).drift) == 2
    seen["resource_version"] = troubles("OP", CAPTURE)["capture"]["resource_version"]
    assert Visitor("OP").send("refresh_capture", seen, **PLACE)["drift"] == []
    Visitor("OP").send("refresh_capture", seen, 409, **PLACE)


def test_a_dead_letter_is_decided_on_once_and_for_its_consumer_alone(source: SqliteFeedSource) -> None:
    """Who may change one consumer may not reach those of others; the second is told who decided, and what."""
    park(source, 1, "no such airport")
    (letter,) = source.dead_letters(FEED)
    create_consumer(source, ConsumerSpec("other", FEED), Beginning.EARLIEST, by="test")
    drop = {"to": "drop", "note": "gone", "resource_version": 1}
    Visitor("OP").send("resolve_dead_letter", drop, 404, **{**LETTER, "consumer": "other", "number": 1})
    assert source.dead_letters(FEED) == [letter]
    place = {**LETTER, "number": letter.number}
    Visitor("OP").send("resolve_dead_letter", drop, **place)
    resolved = source.dead_letters(FEED, is_open=False)[0]
    assert (resolved.resolved_by, resolved.note) == ("op", "gone")
    answer = Visitor("OP").send("resolve_dead_letter", {**drop, "resource_version": 2}, 409, **place)
    assert (answer["error"], answer["present"]) == ("StaleVersionError", "dropped by op")


def test_a_dead_letter_whose_event_was_purged_is_not_retried(source: SqliteFeedSource) -> None:
    """The retry would stop its consumer; it can be dropped."""
    park(source, 1, "no such airport")
    (letter,) = source.dead_letters(FEED)
    source.set_up_feed(FEED, max_hold=timedelta(milliseconds=1))
    source.seal(FEED, after_now(source))
    source.purge(FEED, after_now(source))
    place = {**LETTER, "number": letter.number}
    answer = Visitor("OP").send("resolve_dead_letter", {"to": "retry", "resource_version": 1}, 422, **place)
    assert answer["error"] == "PurgedError"
    assert source.dead_letters(FEED) == [letter]
    Visitor("OP").send("resolve_dead_letter", {"to": "drop", "note": "gone", "resource_version": 1}, **place)
